"""Audit a sweep by the rows of its MLflow database and the files of its folder."""

from __future__ import annotations

import csv
import json
import math
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

EPOCH_METRICS = ("train/loss", "validation/loss", "validation/accuracy", "samples_per_s")
"""Metrics of which each epoch of a trial has one point."""
RUN_STATUS = {"finished": "FINISHED", "diverged": "FINISHED", "stopped": "KILLED"}
"""Status of a trial's run in MLflow, by its status in `trials.csv`."""
COUNTS = {"finished": "completed", "diverged": "diverged", "stopped": "stopped_early"}
"""Count of trials in `summary.json`, by their status in `trials.csv`."""
LEFT_FILES = ("undelivered.jsonl", "refused.jsonl", "undelivered.damaged.jsonl")
"""Files of writes that have not reached MLflow."""
TRIALS_COLUMNS = 10
"""Columns of `trials.csv` before the hyper-parameters."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault of a sweep's results. lost and duplicated: of a run or a point in MLflow."""

    kind: Literal["lost", "duplicated", "different", "other"]
    text: str


@dataclass(slots=True)
class StoredRun:
    """A run as the database has it."""

    run_id: str
    name: str
    status: str
    tags: dict[str, str] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    points: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """Steps and values of each metric, in the order of the steps."""


def read_runs(database: Path, experiment: str) -> list[StoredRun]:
    """Return the experiment's runs that are not deleted."""
    chosen = "JOIN experiments USING (experiment_id) WHERE experiments.name = ? AND runs.lifecycle_stage = 'active'"
    with closing(sqlite3.connect(database, timeout=60)) as store:
        rows = store.execute(f"SELECT run_uuid, runs.name, status FROM runs {chosen}", (experiment,))
        runs = {run_id: StoredRun(run_id, name, status) for run_id, name, status in rows}
        of_runs = f"WHERE run_uuid IN (SELECT run_uuid FROM runs {chosen})"
        for run_id, key, value in store.execute(f"SELECT run_uuid, key, value FROM tags {of_runs}", (experiment,)):
            runs[run_id].tags[key] = value
        for run_id, key, value in store.execute(f"SELECT run_uuid, key, value FROM params {of_runs}", (experiment,)):
            runs[run_id].params[key] = value
        points = f"SELECT run_uuid, key, step, value, is_nan FROM metrics {of_runs} ORDER BY step, timestamp"
        for run_id, key, step, value, is_nan in store.execute(points, (experiment,)):
            runs[run_id].points.setdefault(key, []).append((step, math.nan if is_nan else value))
    return list(runs.values())


def read_trials(folder: Path) -> list[dict[str, str]]:
    """Return the rows of a sweep's `trials.csv`; none without the file."""
    file = folder / "trials.csv"
    if not file.is_file():
        return []
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


def has_finished(folder: Path) -> bool:
    """Return whether the sweep in a folder has trained all trials, though MLflow may lack some results."""
    file = folder / "summary.json"
    return file.is_file() and json.loads(file.read_text())["tracking"]["status"] == "finished"


def trial_runs(runs: Sequence[StoredRun], sweep: str) -> dict[str, list[StoredRun]]:
    """Return the runs of each trial of the sweep of this name."""
    parents = {run.run_id for run in runs if _is_sweep(run) and run.name == sweep}
    found: dict[str, list[StoredRun]] = {}
    for run in runs:
        if run.tags.get("mlflow.parentRunId") in parents:
            found.setdefault(run.tags["raygpu.trial_id"], []).append(run)
    return found


def audit_experiment(runs: Sequence[StoredRun], sweeps: Sequence[str]) -> Iterator[Finding]:
    """Find the sweeps' own runs that are missing, there twice or not finished, and runs that belong to no sweep."""
    parents = [run for run in runs if _is_sweep(run)]
    for name in sweeps:
        named = [run for run in parents if run.name == name]
        if not named:
            yield Finding("lost", f"{name}: no run in MLflow")
        for run in named[1:]:
            yield Finding("duplicated", f"{name}: a second run, {run.run_id}")
        for run in named:
            if run.status != "FINISHED":
                yield Finding("different", f"{name}: its run is {run.status}")
    for run in parents:
        if run.name not in sweeps:
            yield Finding("other", f"a run {run.name} ({run.status}) of a start that left no folder")
    known = {run.run_id for run in parents}
    for run in runs:
        if run not in parents and run.tags.get("mlflow.parentRunId") not in known:
            yield Finding("other", f"run {run.name} belongs to no sweep")


def audit_trials(trials: Sequence[Mapping[str, str]], runs: Mapping[str, Sequence[StoredRun]]) -> Iterator[Finding]:
    """Compare the rows of `trials.csv` with the trials' runs: status, parameters, and a point for each epoch."""
    for row in trials:
        name, of_trial = row["id"], runs.get(row["id"], [])
        if not of_trial:
            yield Finding("lost", f"{name}: no run in MLflow")
        for run in of_trial[1:]:
            yield Finding("duplicated", f"{name}: a second run, {run.run_id}")
        for run in of_trial[:1]:
            if run.status != RUN_STATUS.get(row["status"]):
                yield Finding("different", f"{name}: {row['status']} in trials.csv, {run.status} in MLflow")
            wanted = dict(list(row.items())[TRIALS_COLUMNS:])
            if run.params != wanted:
                yield Finding("different", f"{name}: parameters {run.params}, in trials.csv {wanted}")
            yield from _audit_points(name, run, int(row["epochs"]))
    for name in runs.keys() - {row["id"] for row in trials}:
        yield Finding("different", f"{name}: a run in MLflow, and no row in trials.csv")


def _audit_points(name: str, run: StoredRun, epochs: int) -> Iterator[Finding]:
    """Find epochs without a point or with several, and points past the last epoch."""
    for metric in EPOCH_METRICS:
        counts = Counter(step for step, _ in run.points.get(metric, []))
        for epoch in range(1, epochs + 1):
            if not counts[epoch]:
                yield Finding("lost", f"{name}: {metric} of epoch {epoch}")
        for step, count in sorted(counts.items()):
            if count > 1:
                yield Finding("duplicated", f"{name}: {metric} of epoch {step}, {count} times")
            if not 1 <= step <= epochs:
                yield Finding("different", f"{name}: {metric} of epoch {step} of {epochs}")


def audit_files(folder: Path, num_trials: int) -> Iterator[Finding]:
    """Check a finished sweep's folder: each trial once, equal counts, and nothing left for MLflow."""
    trials = read_trials(folder)
    counts = Counter(row["id"] for row in trials)
    for name in (f"t{index:04d}" for index in range(num_trials)):
        if counts[name] != 1:
            yield Finding("lost" if not counts[name] else "duplicated", f"trials.csv has {name} {counts[name]} times")
    yield from _audit_summary(folder / "summary.json", num_trials, Counter(row["status"] for row in trials))
    for name in LEFT_FILES:
        if (folder / name).is_file() and (folder / name).stat().st_size:
            yield Finding("other", f"{name} is left")


def _audit_summary(file: Path, num_trials: int, statuses: Mapping[str, int]) -> Iterator[Finding]:
    if not file.is_file():
        yield Finding("other", "no summary.json")
        return
    summary: dict[str, Any] = json.loads(file.read_text())
    wanted = {count: statuses.get(status, 0) for status, count in COUNTS.items()}
    wanted |= {"num_trials": num_trials, "failed": 0, "interrupted": 0}
    for name, value in wanted.items():
        if summary[name] != value:
            yield Finding("different", f"summary.json: {name} is {summary[name]}, not {value}")
    tracking = summary["tracking"]
    if tracking["status"] != "finished" or tracking["undelivered"] or tracking["fault"]:
        yield Finding("other", f"summary.json: tracking is {tracking}")


@dataclass(frozen=True, slots=True)
class Results:
    """A sweep's results: its rows of `trials.csv`, and its trials' runs."""

    trials: Sequence[Mapping[str, str]]
    runs: Mapping[str, Sequence[StoredRun]]


def compare(disturbed: Results, reference: Results, *, stops_early: bool) -> Iterator[Finding]:
    """Compare each trial's losses and score with those of the same sweep without faults: equal to the bit.

    stops_early: compare only the epochs that both have, and the scores of trials with equally many.
    """
    rows = {row["id"]: row for row in reference.trials}
    for row in disturbed.trials:
        name, wanted = row["id"], rows.get(row["id"])
        losses, wanted_losses = (_losses(each.runs.get(name, [])) for each in (disturbed, reference))
        for epoch in sorted(losses.keys() & wanted_losses.keys()):
            if losses[epoch] != wanted_losses[epoch]:
                text = f"{name}: loss of epoch {epoch} is {losses[epoch]!r}, without faults {wanted_losses[epoch]!r}"
                yield Finding("different", text)
        if wanted is None or (stops_early and row["epochs"] != wanted["epochs"]):
            continue
        if (row["epochs"], row["score"]) != (wanted["epochs"], wanted["score"]):
            text = f"score {row['score']} after {row['epochs']} epochs, without faults {wanted['score']}"
            yield Finding("different", f"{name}: {text} after {wanted['epochs']}")


def _losses(runs: Sequence[StoredRun]) -> dict[int, float]:
    return dict(runs[0].points.get("train/loss", [])) if runs else {}


def _is_sweep(run: StoredRun) -> bool:
    return run.tags.get("raygpu.kind") == "sweep"
