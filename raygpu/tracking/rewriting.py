"""Write a run to MLflow again, from its folder, where the store has lost it: deleted there, or another store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from raygpu.config import ProblemConfig, SweepConfig
from raygpu.records import timeline, trials_csv
from raygpu.records.run_directory import RunDirectory
from raygpu.records.trials_csv import TrialRow
from raygpu.search.repeats import Repetition
from raygpu.search.space import trial_seed
from raygpu.search.trial_record import Status
from raygpu.search.trials import Trial
from raygpu.tracking import client, journal
from raygpu.tracking.runs import RunTree
from raygpu.tracking.trial_runs import Child
from raygpu.tracking.values import MetricValue

ENDINGS: Mapping[str, Status] = {
    "finished": "finished",
    "diverged": "finished",
    "stopped": "stopped",
    "failed": "failed",
    "interrupted": "interrupted",
}
"""Status of a trial's run by the status in `trials.csv`."""


@dataclass(slots=True)
class _Waiting:
    """A trial in the journal, whose writes are delivered later."""

    trial: Trial | None = None
    """The trial as the journal has it, whose parameters are delivered; None where it does not begin there."""
    ends: bool = False
    epochs: set[int] = field(default_factory=set)


def has_run(tree: RunTree, run_id: str) -> bool:
    """Return whether the store has this run, and has not deleted it. Raises TrackingError without an answer."""
    try:
        return str(tree.mlflow.get_run(run_id).info.lifecycle_stage) == "active"
    except Exception as error:
        if client.is_missing(error):
            return False
        raise client.fault(tree.uri, error) from error


def replace_lost(
    tree: RunTree, folder: RunDirectory, config: ProblemConfig, lost: str, advance: Callable[[], None] = lambda: None
) -> str:
    """Write a run again that the store has lost, into the one that was begun in its place; return a line for the user.

    lost: id of the run. advance: called after each trial. Raises TrackingError.
    """
    num_left = len(tree.children)
    count = write_again(tree, folder, config, advance)
    extent = f"{count:,} trials" if isinstance(config, SweepConfig) else "its epochs"
    left = f" the runs of {num_left:,} trials belong to it now," if num_left else ""
    return (
        f"MLflow: the run {lost} is not in the store any more; a new one, {tree.run_id}, was begun,{left} and {extent}"
        f" written again from {folder}: of each epoch the few metrics that {folder.timeline.name} keeps"
    )


def write_again(
    tree: RunTree, folder: RunDirectory, config: ProblemConfig, advance: Callable[[], None] = lambda: None
) -> int:
    """Write what the run's folder holds, and its journal and the trials' runs lack, to a new run: each trial's
    parameters, the metrics of its epochs that the timeline keeps, and its status. Return the number of trials without
    a run.

    config: of the run. advance: called after each trial. What was written before is not written twice. Raises
    TrackingError.
    """
    run_timeline = timeline.read(folder.timeline)
    waiting = _waiting(folder)
    rows = {row.trial_id: row for row in trials_csv.read(folder.trials_csv)}
    assert tree.run_id is not None
    trial_ids = {*rows, *run_timeline.curves} - {timeline.TRAINING}
    num_new = len(trial_ids - tree.children.keys())
    for trial_id in sorted(trial_ids, key=Trial.order):
        row, backlog = rows.get(trial_id), waiting.get(trial_id, _Waiting())
        moments = run_timeline.ended_s.get(trial_id, {})
        child = tree.children.get(trial_id)
        if child is None:
            began_ms = min((round(1000 * moment) for moment in moments.values()), default=None)
            trial = backlog.trial or _trial(trial_id, row, config)
            child = Child(tree.create_trial(trial, None, began_ms))
        curve = _points(run_timeline.curves.get(trial_id, {}), moments, backlog.epochs, child.last_epoch)
        params = row.hyperparameters if row is not None and backlog.trial is None and not child.has_params else {}
        tree.log(child.run_id, curve, params)
        # Waiting epochs are delivered after these, so that only earlier ones are known.
        last = max((epoch for epoch in moments if epoch < min(backlog.epochs, default=epoch + 1)), default=0)
        child = tree.children[trial_id] = replace(child, last_epoch=max(last, child.last_epoch))
        if row is not None and not backlog.ends and not child.has_ended and row.status in ENDINGS:
            ended_ms = max((round(1000 * moment) for moment in moments.values()), default=None)
            score = {"raygpu.status": row.status, **({"raygpu.diverged": "true"} if row.status == "diverged" else {})}
            tree.log(child.run_id, tags=score)
            tree.finish(child.run_id, ENDINGS[row.status], ended_ms)
            tree.children[trial_id] = replace(child, has_ended=True, ending=row.status)
        advance()
    training = _points(
        run_timeline.curves.get(timeline.TRAINING, {}), run_timeline.ended_s.get(timeline.TRAINING, {}), set()
    )
    tree.log(tree.run_id, training)
    return num_new


def _waiting(folder: RunDirectory) -> dict[str, _Waiting]:
    """Return what waits in the journal, by trial."""
    waiting: dict[str, _Waiting] = {}
    for write in journal.load(folder.journal)[0] if folder.journal.is_file() else []:
        if write.trial_id is None:
            continue
        backlog = waiting.setdefault(write.trial_id, _Waiting())
        match write.kind:
            case "begin" | "restart":
                backlog.trial = write.value
            case "epochs":
                backlog.epochs.update(result.epoch for result in write.value)
            case "end":
                backlog.ends = True
    return waiting


def _trial(trial_id: str, row: TrialRow | None, config: ProblemConfig) -> Trial:
    """Return a trial by its id and its row, with the seed, the repeat and the fold that a search gives it."""
    set_id, _, number = trial_id.partition("-")
    values: Mapping[str, Any] = row.hyperparameters if row is not None else {}
    drawn = Trial(set_id, trial_seed(config.seed, int(set_id[1:])), values)
    if not number:
        return drawn
    assert isinstance(config, SweepConfig)
    return Repetition.of(config).training(drawn, int(number) - 1, config.seed)


def _points(
    curve: Mapping[int, Mapping[str, float]], moments: Mapping[int, float], left_out: set[int], after: int = 0
) -> list[MetricValue]:
    return [
        MetricValue(name, value, epoch, round(1000 * moments.get(epoch, 0.0)))
        for epoch, metrics in sorted(curve.items())
        for name, value in metrics.items()
        if epoch > after and epoch not in left_out
    ]
