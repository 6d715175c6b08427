"""Tell MLflow again how trials ended, where it lacks that: an earlier start's journal was lost with its machine."""

from __future__ import annotations

from collections.abc import Collection

from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import EpochResult
from raygpu.tracking.session import Session
from raygpu.tracking.trial_runs import Child

NONE = Child("")


def end_left_open(session: Session, records: Collection[TrialRecord]) -> list[str]:
    """Write the end, and the metrics of the last epoch, of each trial that has ended and whose run in MLflow has not,
    or is not there; return a line for the user, if there is such a trial.

    session: of a sweep that was gone on with. What this process has ended, or a store that has not been reached, is
    left out.
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
    if tree is None or not told:
        return []
    for record in told:
        run = runs.get(record.trial.trial_id, NONE)
        if not run.has_params:
            writer.begin(record.trial)
        if run.last_epoch < record.epochs:
            writer.epochs(record.trial.trial_id, [EpochResult(record.epochs, record.metrics)])
        writer.end(record)
    return [
        f"MLflow: {len(told):,} trials that an earlier start has ended had not ended there; their ends and last metrics"
        " are written again, epochs before these are lost"
    ]
