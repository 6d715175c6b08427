"""`trials.csv` of a sweep: a row for each trial, its hyper-parameters as columns of their own."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raygpu.records.run_files import read_rows, rounded
from raygpu.records.space_columns import CHANGES, LAST, OF_SET, space_beside, space_columns, space_values
from raygpu.records.whole_files import whole_file
from raygpu.search.scoring import rank
from raygpu.search.space import Space
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import Trial

LOSS = "validation_loss"
"""Column of the validation loss at the epoch of the score, which ranks trials with equal scores."""
OWN = ("id", "status", "score", LOSS, "score_epoch", "best_epoch", "epochs", "samples_per_s", "gpu", "rgu_hours")
"""Columns before those of the hyper-parameters."""


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A trial as its row tells of it; None for what is not known."""

    trial_id: str
    status: str
    """Finished, diverged, stopped, failed or interrupted."""
    score: float | None
    epochs: int
    samples_per_s: float | None
    gpu: int | None
    hyperparameters: Mapping[str, Any]
    """By name, without those that the trial does not have."""
    validation_loss: float | None = None
    """Validation loss at the epoch of the score."""

    @property
    def finite(self) -> bool:
        """Whether the trial has a finite score."""
        return self.score is not None and math.isfinite(self.score) and self.status not in ("diverged", "failed")


def write(path: Path, records: Sequence[TrialRecord]) -> None:
    """Write the file."""
    names = list(dict.fromkeys(name for record in records for name in record.trial.hyperparameters))
    last = sorted({name for record in records for change in record.changes for name in change.values})
    repeated = any(record.trial.repeat is not None for record in records)
    trial_columns = [*OWN, *(OF_SET if repeated else ()), *((CHANGES,) if last else ())]
    trial_columns += [f"{LAST}{name}" for name in last]
    header = [*trial_columns, *space_columns(names, trial_columns)]
    with whole_file(path) as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for r in records:
            row = [r.trial.trial_id, r.outcome, r.score, r.validation_loss, r.score_epoch, r.best_epoch, r.epochs]
            row += [rounded(r.samples_per_s), r.gpu_index, rounded(r.rgu_hours, 6)]
            if repeated:
                numbers = [None if number is None else number + 1 for number in (r.trial.repeat, r.trial.fold)]
                row += [r.trial.set_id, *numbers]
            if last:
                row += [len(r.changes), *(r.values.get(name) for name in last)]
            writer.writerow([*row, *(r.trial.hyperparameters.get(name) for name in names)])


def read(path: Path) -> list[TrialRow]:
    """Return the rows, with values as the space in the sweep's folder has them; none without the file.

    Raises BadInput if it is damaged.
    """
    space = space_beside(path)
    return read_rows(path, lambda row: _row(row, space))


def ranked(rows: Iterable[TrialRow], *, maximize: bool) -> list[TrialRow]:
    """Return the trials with a finite score, the best first; equal ones as the sweep has ranked them."""
    finite = [row for row in rows if row.finite]
    return sorted(
        finite,
        key=lambda row: (
            *rank(row.score or 0.0, row.validation_loss, maximize=maximize),
            Trial.order(row.trial_id),
        ),
    )


def _row(row: Mapping[str, str], space: Space | None) -> TrialRow:
    return TrialRow(
        trial_id=row["id"],
        status=row["status"],
        score=float(row["score"]) if row["score"] else None,
        epochs=int(row["epochs"] or 0),
        samples_per_s=float(row["samples_per_s"]) if row["samples_per_s"] else None,
        gpu=int(row["gpu"]) if row["gpu"] else None,
        hyperparameters=space_values(row, OWN, space),
        validation_loss=float(row[LOSS]) if row[LOSS] else None,
    )
