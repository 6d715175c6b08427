"""`sets.csv` of a sweep with repeats: a row for each set of hyper-parameters, the best first."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raygpu.records.run_files import read_rows
from raygpu.records.set_records import SetRecord
from raygpu.records.space_columns import space_beside, space_columns, space_values
from raygpu.records.whole_files import whole_file
from raygpu.search.space import Space

OWN = ("set", "status", "score", "standard_error", "repeats")
"""Columns before those of the hyper-parameters."""


@dataclass(frozen=True, slots=True)
class SetRow:
    """A set as its row tells of it; None for what is not known."""

    set_id: str
    status: str
    """complete, or why it lacks trainings: raced, stopped, diverged, failed, interrupted."""
    score: float | None
    """Mean over its trainings."""
    standard_error: float | None
    repeats: int
    """Number of trainings that the mean is of."""
    hyperparameters: Mapping[str, Any]


def write(path: Path, sets: Sequence[SetRecord]) -> None:
    """Write the file."""
    names = list(dict.fromkeys(name for each in sets for name in each.hyperparameters))
    with whole_file(path) as file:
        writer = csv.writer(file)
        writer.writerow([*OWN, *space_columns(names, OWN)])
        for each in sets:
            row = [each.set_id, each.status, each.mean, each.error, len(each.scored)]
            writer.writerow([*row, *(each.hyperparameters.get(name) for name in names)])


def read(path: Path) -> list[SetRow]:
    """Return the rows, the best set first, with values as the space in the sweep's folder has them; none without the
    file. Raises BadInput if it is damaged."""
    space = space_beside(path)
    return read_rows(path, lambda row: _row(row, space))


def _row(row: Mapping[str, str], space: Space | None) -> SetRow:
    return SetRow(
        set_id=row["set"],
        status=row["status"],
        score=float(row["score"]) if row["score"] else None,
        standard_error=float(row["standard_error"]) if row["standard_error"] else None,
        repeats=int(row["repeats"] or 0),
        hyperparameters=space_values(row, OWN, space),
    )
