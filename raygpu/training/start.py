"""From a source to the training that runs it: the one place that knows all kinds of experiment."""

from __future__ import annotations

from typing import Any, cast

from raygpu.experiment import Experiment, Source, Splits
from raygpu.training.base import Settings, Training
from raygpu.trials import Trial


def start(source: Source, code: Any, splits: Splits | None, trial: Trial, settings: Settings) -> Training:
    """The training of one trial.

    code: what `source.resolve()` gave, kept by the caller so that one worker resolves it once; None for a command.
    splits: the data of a torch or Keras experiment.
    """
    match source.kind:
        case "torch":
            from raygpu.training.torch_solo import TorchSolo

            return TorchSolo(cast(Experiment, code), _needed(splits), trial, settings)
        case "keras":
            from raygpu.training.keras_solo import KerasSolo

            return KerasSolo(cast(Experiment, code), _needed(splits), trial, settings)
        case "function":
            from raygpu.training.function import FunctionTraining

            return FunctionTraining(code, trial, settings)
        case "command":
            from raygpu.training.script import ScriptTraining

            return ScriptTraining(source.name, source.folder, trial, settings)
    raise ValueError(f"unknown kind of experiment: {source.kind!r}")


def _needed(splits: Splits | None) -> Splits:
    assert splits is not None, "torch and Keras experiments have data"
    return splits
