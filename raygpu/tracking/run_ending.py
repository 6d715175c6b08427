"""The end of a run as MLflow gets it: its status, its last metrics, and its files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raygpu.records.run_directory import RunDirectory
from raygpu.records.score_on_test import TEST, ScoreOnTest
from raygpu.search.trial_record import Status


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a run, as MLflow gets it."""

    status: Status
    metrics: Mapping[str, float]
    tags: Mapping[str, Any]
    files: Sequence[tuple[Path, str | None]]
    """Files and folders of the run, each with its folder among the run's artifacts; None for the top."""


def metrics_on_test(folder: RunDirectory, summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the best model's metrics on the test data, `test/accuracy`, NaN where MLflow has those of an earlier best
    model alone; empty without test data."""
    earlier, score = (ScoreOnTest.read(values.get(TEST)) for values in (folder.read_run(), summary))
    stale = dict.fromkeys(earlier.metrics, math.nan) if earlier is not None else {}
    return stale | (dict(score.metrics) if score is not None else {})


def report_files(folder: RunDirectory) -> list[tuple[Path, str | None]]:
    """Return the report and its pictures, each with its folder among the run's artifacts; empty without a report."""
    if not folder.report.is_file():
        return []
    return [(folder.report, None), *((picture, "plots") for picture in sorted(folder.plots.glob("*.png")))]
