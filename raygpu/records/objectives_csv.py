"""`objectives.csv` of a sweep with several metrics: a row for each trial that has all of them."""

from __future__ import annotations

import csv
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from raygpu.errors import BadInput
from raygpu.records.whole_files import whole_file
from raygpu.search.trial_record import TrialRecord

OWN = ("id", "front")
"""Columns before those of the metrics."""


@dataclass(frozen=True, slots=True)
class ObjectivesRow:
    """A trial with its metrics."""

    trial_id: str
    on_front: bool
    """Whether no other trial beats it in every metric."""
    values: tuple[float, ...]


def write(path: Path, metrics: Sequence[str], records: Sequence[TrialRecord], front: Collection[str]) -> None:
    """Write the file. front: ids of the trials on the Pareto front."""
    with whole_file(path) as file:
        writer = csv.writer(file)
        writer.writerow([*OWN, *metrics])
        for record in records:
            if (values := record.objectives) is not None:
                trial_id = record.trial.trial_id
                writer.writerow([trial_id, "yes" if trial_id in front else "no", *values])


def read(path: Path) -> tuple[list[str], list[ObjectivesRow]]:
    """Return the metrics and the rows; none without the file. Raises BadInput if it is damaged."""
    if not path.is_file():
        return [], []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file, strict=True))
        metrics = rows[0][len(OWN) :]
        trials = [ObjectivesRow(row[0], row[1] == "yes", tuple(map(float, row[len(OWN) :]))) for row in rows[1:]]
    except (ValueError, IndexError, csv.Error) as error:
        raise BadInput(f"{path}: {error!r}; --resume writes it anew") from error
    return metrics, trials
