"""What a searcher knew when: a line for each score, and the test error of its best model at a moment."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from experiments.benchmarks.search_quality.problems import Score


@dataclass(frozen=True, slots=True)
class Report:
    """A training's score after an epoch. elapsed_s: seconds since the searcher's command."""

    elapsed_s: float
    training: str
    validation: float
    test: float


@dataclass(frozen=True, slots=True)
class Notebook:
    """File of reports that several processes append to. began: moment of the command, by time.time()."""

    path: Path
    began: float

    def add(self, training: str, score: Score) -> None:
        """Append a report of this moment."""
        line = json.dumps([time.time() - self.began, training, score.validation, score.test]) + "\n"
        with self.path.open("a") as file:
            file.write(line)

    @property
    def runs(self) -> Path:
        """Folder for the runs of a searcher that keeps them."""
        return self.path.with_suffix(".runs")

    def read(self) -> list[Report]:
        """Return all reports; none of a searcher that never got to one."""
        if not self.path.is_file():
            return []
        return [Report(*json.loads(line)) for line in self.path.read_text().splitlines() if line.endswith("]")]


def trainings(notebook: Notebook) -> int:
    """Return the number of trainings that a searcher began: raygpu's, which notes its best one alone, by its table."""
    tables = list(notebook.runs.glob("*/trials.csv"))
    if tables:
        return len(tables[0].read_text().splitlines()) - 1
    return len({report.training for report in notebook.read()})


def incumbent(reports: Iterable[Report], at_s: float) -> Report | None:
    """Return the latest report of the training with the best latest validation score at a moment; None before any.

    A training counts as it is: one that was better an epoch ago does not.
    """
    latest: dict[str, Report] = {}
    for report in sorted(reports, key=lambda each: each.elapsed_s):
        if report.elapsed_s <= at_s:
            latest[report.training] = report
    return min(latest.values(), key=lambda each: each.validation, default=None)
