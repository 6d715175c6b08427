"""Present a run on MLflow's pages, while it runs, at its end, and once more when it is delivered later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raygpu.cli.run_description import sweep_description, training_description
from raygpu.config import ProblemConfig, SweepConfig, TrainConfig
from raygpu.config.source import Source
from raygpu.records.run_directory import RunDirectory
from raygpu.search.space import varied
from raygpu.tracking.presentation import Presentation, TrialsView

PLAN, SCORE = "plan_lines", "score_metric"
"""Names in `run.json` of the plan's lines, and of the metric that scores the trials as their runs have it."""


def note_plan(folder: RunDirectory, config: SweepConfig, source: Source, lines: Sequence[str]) -> None:
    """Keep in the run's folder what a sweep's presentation needs. lines: the plan, as printed."""
    score = "best/score" if config.score == "best" else source.reported(config.metric)
    folder.write_run({PLAN: list(lines), SCORE: score})


def presentation(config: ProblemConfig, folder: RunDirectory, summary: Mapping[str, Any] | None) -> Presentation:
    """Return how MLflow's pages present a sweep or a training.

    summary: of its end; None while it runs.
    """
    if isinstance(config, TrainConfig):
        return Presentation(training_description(config, folder, summary))
    assert isinstance(config, SweepConfig)
    noted = folder.read_run()
    described = sweep_description(config, noted.get(PLAN, []), folder, summary)
    if SCORE not in noted:  # it was killed before it had a plan
        return Presentation(described)
    return Presentation(described, TrialsView(noted[SCORE], config.maximize, varied(config.space), config.per_set > 1))
