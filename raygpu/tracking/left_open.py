"""Tell MLflow again how trials ended, where it lacks that: an earlier start's journal was lost with its machine."""

from __future__ import annotations

from collections.abc import Collection

from raygpu.records.set_records import SetRecord
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import EpochResult
from raygpu.tracking.runs import PARENT, RunTree
from raygpu.tracking.session import Session
from raygpu.tracking.trial_runs import Child, all_runs

NONE = Child("")


def end_left_open(session: Session, records: Collection[TrialRecord], sets: Collection[SetRecord] = ()) -> list[str]:
    """Write the end, and the metrics of the last epoch, of each trial that has ended and whose run in MLflow has not,
    or is not there; return a line for the user, if there is such a trial.

    session: of a sweep that was gone on with. What this process has ended, a run that was deleted in MLflow, and a
    store that has not been reached, are left out. sets: of repeats or folds, whose metrics are written again too where
    they are complete.
    """
    tree, writer = session.begun(), session.writer
    runs = tree.children if tree is not None else {}
    told = [
        record
        for record in records
        if record.ended
        and record.trial.trial_id not in writer.ended
        and runs.get(record.trial.trial_id, NONE).ending != record.outcome
    ]
    if tree is not None and (gone := {record.trial.trial_id for record in told} - runs.keys()):
        deleted = _deleted(tree, gone)
        told = [record for record in told if record.trial.trial_id not in deleted]
    if tree is None or not told:
        return []
    for record in told:
        run = runs.get(record.trial.trial_id, NONE)
        if not run.has_params:
            writer.begin(record.trial)
        if run.last_epoch < record.epochs:
            writer.epochs(record.trial.trial_id, [EpochResult(record.epochs, record.metrics)])
        writer.end(record)
    set_metrics = {each.set_id: each.metrics() for each in sets if each.is_complete}
    for record in told:
        if (metrics := set_metrics.get(record.trial.set_id)) is not None:
            writer.metrics(record.trial.trial_id, metrics)
    return [
        f"MLflow: {len(told):,} trials that an earlier start has ended had not ended there; their ends and last metrics"
        " are written again, epochs before these are lost"
    ]


def _deleted(tree: RunTree, gone: set[str]) -> set[str]:
    """Return the trials, of those without a run, whose runs were deleted in MLflow; all if it does not answer, for a
    later start asks again."""
    query = f"tags.`{PARENT}` = '{tree.run_id}'"
    try:
        runs = all_runs(tree.mlflow, tree.experiment_id, query, deleted=True)
    except Exception:  # noqa: BLE001 - MLflow raises errors of all layers below it
        return gone
    return gone & {run.data.tags.get("raygpu.trial_id") for run in runs}
