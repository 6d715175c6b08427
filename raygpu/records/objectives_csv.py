"""`objectives.csv` of a sweep with several metrics: a row for each trial that has all of them."""

from __future__ import annotations

import csv
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from raygpu.records.csv_files import read_rows
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
    """Return the metrics and the rows; none without the file, or in an empty one. Raises BadInput if it is damaged."""
    found = read_rows(path, _row)
    return (found[0][0] if found else []), [row for _, row in found]


def _row(row: Mapping[str, str]) -> tuple[list[str], ObjectivesRow]:
    """Return the metrics of a row, and the row."""
    metrics = [name for name in row if name not in OWN]
    return metrics, ObjectivesRow(row["id"], row["front"] == "yes", tuple(float(row[name]) for name in metrics))
