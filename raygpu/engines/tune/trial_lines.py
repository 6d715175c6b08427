"""Lines on the events of a sweep's trials, for a person who asked for details."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raygpu.engines.cluster import ray_files
from raygpu.engines.tune.array_config import ArrayConfig
from raygpu.errors import error_line
from raygpu.search.trial_record import TrialRecord

FEW = 6
"""Largest number of trials that a line names."""


def named(config: ArrayConfig) -> str:
    """Return a Tune trial's name for a person: that of its one trial, or of its array."""
    return f"array {config.name}" if config.fused else config.name


def printable(text: str) -> str:
    """Return a text that every stream and file takes: a name of a file that is no UTF-8 escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def began(config: ArrayConfig, hyperparameters: Mapping[str, Any]) -> str:
    """Return a line on a Tune trial that has got its place. hyperparameters: of its first trial."""
    if config.fused:
        return f"{named(config)} begins: {_trials(config.trial_ids)}"
    values = " ".join(f"{name}={value}" for name, value in hyperparameters.items())
    again = ", from a checkpoint" if config.checkpoint is not None else ""
    return f"{named(config)} begins{again}: {values}"


def placed(config: ArrayConfig, gpu_index: int | None, result: Mapping[str, Any], *, local: bool) -> str:
    """Return a line on where a Tune trial runs, and where its worker's log is. result: of Tune."""
    where = "an unknown device" if gpu_index is None else f"gpu {gpu_index}"
    pid = result.get("pid")
    worker = f"process {pid} on {result.get('hostname', 'its node')}"
    logs = ray_files.logs() if local else None
    log = f"; log: {logs}/worker-*-{pid}.out and .err" if logs is not None else ""
    return f"{named(config)} runs on {where}, {config.share.part} of it, {worker}{log}"


def ended(record: TrialRecord, metric: str) -> str:
    """Return a line on a trial's end: how, why, and with which score."""
    why = f" by {record.reason}" if record.reason else ""
    why += f": {error_line(record.error)}" if record.error else ""
    score = "" if record.score is None or record.diverged else f", {metric} {record.score:.6g}"
    best = "" if record.best_epoch in (None, record.epochs) else f" (best at epoch {record.best_epoch})"
    epochs = f"{record.epochs} epoch{'' if record.epochs == 1 else 's'}"
    return f"{record.trial.trial_id} {record.outcome} after {epochs}{why}{score}{best}"


def compacted(config: ArrayConfig, before: int, left: Sequence[str]) -> str:
    """Return a line on an array that goes on with fewer trials. before: how many there were."""
    return f"{named(config)}: {len(left)} of {before} trials go on: {_trials(left)}"


def enlarged(trial_id: str, before: str, after: str, *, from_checkpoint: bool) -> str:
    """Return a line on a trial that ran out of memory and is tried again. before, after: its shares of a GPU."""
    start = "its last checkpoint" if from_checkpoint else "the beginning"
    return f"{trial_id} ran out of memory in {before} of a GPU; it is tried again in {after}, from {start}"


def went_back(trial_id: str, epoch: int) -> str:
    """Return a line on a trial whose new attempt repeats epochs. epoch: the last one that still counts."""
    start = f"epoch {epoch}" if epoch else "the beginning"
    return f"{trial_id} goes on from {start}: later epochs of the attempt before do not count"


def _trials(names: Sequence[str]) -> str:
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return ", ".join(names[:FEW]) + more
