"""The soak's audit finds what it is there to find, in a store that MLflow itself has written."""

from __future__ import annotations

import csv
import json
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from raygpu.records import trials_csv
from tests.soak.audit import (
    EPOCH_METRICS,
    Finding,
    Results,
    audit_experiment,
    audit_files,
    audit_trials,
    compare,
    read_runs,
    read_trials,
    trial_runs,
)

TRIALS, EPOCHS, LR = ("t0000", "t0001"), 3, "0.1"


@dataclass(frozen=True)
class Sweep:
    """A finished sweep in a store and a folder."""

    uri: str
    folder: Path

    def write(self) -> None:
        """Write the sweep as raygpu does, without a fault."""
        parent = self.begin("swept", {"raygpu.kind": "sweep"})
        for trial_id in TRIALS:
            self.trial(parent, trial_id)
        self.client.set_terminated(parent)
        header = [*trials_csv.OWN]
        with (self.folder / "trials.csv").open("w", newline="") as file:
            csv.writer(file).writerow([*header, "lr"])
            csv.writer(file).writerows([[name, "finished", 0.5, 0.7, 3, 3, EPOCHS, 1.0, 0, "", LR] for name in TRIALS])
        summary = {"num_trials": 2, "completed": 2, "diverged": 0, "stopped_early": 0, "failed": 0, "interrupted": 0}
        tracking = {"status": "finished", "undelivered": 0, "fault": None}
        (self.folder / "summary.json").write_text(json.dumps({**summary, "tracking": tracking}))

    @property
    def client(self) -> Any:
        from mlflow.tracking import MlflowClient

        return MlflowClient(self.uri)

    def begin(self, name: str, tags: dict[str, str]) -> str:
        return str(self.client.create_run("0", tags=tags, run_name=name).info.run_id)

    def trial(self, parent: str, trial_id: str) -> str:
        run_id = self.begin(trial_id, {"mlflow.parentRunId": parent, "raygpu.trial_id": trial_id})
        self.client.log_param(run_id, "lr", LR)
        for metric in EPOCH_METRICS:
            for epoch in range(1, EPOCHS + 1):
                self.client.log_metric(run_id, metric, 1 / epoch, timestamp=epoch, step=epoch)
        self.client.set_terminated(run_id)
        return run_id

    def run_of(self, trial_id: str) -> str:
        return trial_runs(read_runs(self.database, "Default"), "swept")[trial_id][0].run_id

    @property
    def database(self) -> Path:
        return Path(self.uri.removeprefix("sqlite:///"))

    def forget(self, metric: str, epoch: int) -> None:
        """Delete a point of the first trial, which MLflow has no call for."""
        with sqlite3.connect(self.database) as store:
            chosen = (self.run_of(TRIALS[0]), metric, epoch)
            store.execute("DELETE FROM metrics WHERE run_uuid = ? AND key = ? AND step = ?", chosen)

    def findings(self) -> list[Finding]:
        runs, trials = read_runs(self.database, "Default"), read_trials(self.folder)
        audits = (
            audit_experiment(runs, ["swept"]),
            audit_trials(trials, trial_runs(runs, "swept")),
            audit_files(self.folder, len(TRIALS)),
        )
        return [finding for audit in audits for finding in audit]

    def results(self) -> Results:
        return Results(read_trials(self.folder), trial_runs(read_runs(self.database, "Default"), "swept"))


@pytest.fixture
def sweep(new_store: Callable[[Path], str], tmp_path: Path) -> Sweep:
    made = Sweep(new_store(tmp_path), tmp_path)
    made.write()
    return made


def test_nothing_is_found_in_a_clean_sweep(sweep: Sweep) -> None:
    assert sweep.findings() == []
    assert list(compare(sweep.results(), sweep.results(), stops_early=False)) == []


def test_a_lost_point_is_found(sweep: Sweep) -> None:
    sweep.forget("validation/loss", 2)
    assert sweep.findings() == [Finding("lost", "t0000: validation/loss of epoch 2")]


def test_a_duplicated_point_is_found(sweep: Sweep) -> None:
    sweep.client.log_metric(sweep.run_of("t0001"), "train/loss", 1 / 3, timestamp=99, step=3)
    assert sweep.findings() == [Finding("duplicated", "t0001: train/loss of epoch 3, 2 times")]


def test_a_point_past_the_last_epoch_is_found(sweep: Sweep) -> None:
    sweep.client.log_metric(sweep.run_of("t0001"), "train/loss", 1.0, timestamp=99, step=4)
    assert sweep.findings() == [Finding("different", "t0001: train/loss of epoch 4 of 3")]


def test_a_duplicated_run_is_found(sweep: Sweep) -> None:
    parent = next(run.run_id for run in read_runs(sweep.database, "Default") if run.name == "swept")
    second = sweep.trial(parent, "t0001")
    assert sweep.findings() == [Finding("duplicated", f"t0001: a second run, {second}")]
    sweep.client.delete_run(second)
    assert sweep.findings() == []


def test_a_lost_run_a_second_sweep_and_a_stray_are_found(sweep: Sweep) -> None:
    sweep.client.delete_run(sweep.run_of("t0000"))
    second = sweep.begin("swept", {"raygpu.kind": "sweep"})
    sweep.begin("stray", {})
    found = sweep.findings()
    assert Finding("lost", "t0000: no run in MLflow") in found
    assert {finding.kind for finding in found} == {"lost", "duplicated", "different", "other"}
    assert any(second in finding.text for finding in found if finding.kind == "duplicated")
    assert Finding("other", "run stray belongs to no sweep") in found


def test_what_the_folder_lacks_is_found(sweep: Sweep) -> None:
    (sweep.folder / "undelivered.jsonl").write_text("{}\n")
    rows = (sweep.folder / "trials.csv").read_text().splitlines()
    (sweep.folder / "trials.csv").write_text("\n".join([*rows[:2], rows[1]]) + "\n")
    texts = [finding.text for finding in audit_files(sweep.folder, len(TRIALS))]
    assert texts == ["trials.csv has t0000 2 times", "trials.csv has t0001 0 times", "undelivered.jsonl is left"]


def test_another_loss_and_another_score_are_found(sweep: Sweep) -> None:
    reference = sweep.results()
    run = reference.runs["t0001"][0]
    points = {**run.points, "train/loss": [(1, 1.0), (2, 0.5), (3, 0.25)]}
    other = replace(reference, runs={**reference.runs, "t0001": [replace(run, points=points)]})
    (loss,) = compare(other, reference, stops_early=False)
    assert loss.kind == "different"
    assert "t0001: loss of epoch 3" in loss.text
    rows = [{**row, "score": "0.6"} for row in reference.trials]
    assert len(list(compare(replace(reference, trials=rows), reference, stops_early=True))) == len(TRIALS)
