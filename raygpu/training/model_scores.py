"""Metrics of a trained model on data that it has not been trained on: its test data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from raygpu.config.source import Source
from raygpu.experiment import Splits
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.start import start


def model_scores(
    source: Source,
    code: Any,
    tested: Splits,
    trial: Trial,
    checkpoint: Path,
    settings: Settings,
    say: Callable[[str], None],
) -> dict[str, float]:
    """Evaluate a checkpoint's model as its own training would: the same batches, precision, loss and metrics.

    tested: the data to score on, in place of the validation data (`Splits.for_test`). checkpoint: folder with the
    checkpoint of a trial, or of a production training. say: called with lines on the evaluation.
    """
    training: Any = start(source, code, tested, replace(trial, fold=None), settings)
    try:
        training.load_parameters(checkpoint)
        scores: dict[str, float] = training.evaluate()
        for note in training.notes:
            say(note)
        return scores
    finally:
        training.close()
