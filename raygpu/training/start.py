"""Start of one trial's training alone, by the kind of its source: torch, Keras, a function or a command."""

from __future__ import annotations

import contextlib
from typing import Any, cast

from raygpu.config.source import Source
from raygpu.errors import BadInput, one_line
from raygpu.experiment import Experiment, Splits
from raygpu.search.signature import Signature
from raygpu.search.trials import Trial
from raygpu.training.base import Settings, Training
from raygpu.training.folds import Data
from raygpu.training.own_copy import own_copy


def start(source: Source, code: Any, splits: Data | None, trial: Trial, settings: Settings) -> Training:
    """Make the training of one trial.

    code: result of `source.resolve()`, kept by the caller so that one worker resolves it once; None for a command. The
    trial gets a copy of an experiment.
    splits: the data of a torch or Keras experiment, of which the trial names its fold if there are folds.
    """
    match source.kind:
        case "torch":
            from raygpu.training.torch.solo import TorchSolo

            return TorchSolo(own_copy(cast(Experiment, code)), _needed(splits), trial, settings)
        case "keras":
            from raygpu.training.keras.kept_layers import require_no_generator
            from raygpu.training.keras.solo import KerasSolo

            require_no_generator(cast(Experiment, code))
            return KerasSolo(own_copy(cast(Experiment, code)), _needed(splits), trial, settings)
        case "function":
            from raygpu.training.callable.function import FunctionTraining

            return FunctionTraining(code, trial, settings)
        case "command":
            from raygpu.training.callable.script import ScriptTraining

            return ScriptTraining(source.name, source.folder, source.script, trial, settings)
    raise ValueError(f"unknown kind of experiment: {source.kind!r}")


def _needed(splits: Data | None) -> Data:
    assert splits is not None, "torch and Keras experiments have data"
    return splits


def signature(source: Source, code: Any, splits: Splits | None, trial: Trial) -> Signature:
    """Return the hyper-parameters that shape a trial's program; empty for a function or script, which has its own
    program.

    Raises BadInput with the message of any exception of the experiment.
    """
    if not isinstance(code, Experiment):
        return Signature(())
    assert splits is not None
    if source.kind == "torch":
        from raygpu.training.fused.dry_run import names_read
    else:
        from raygpu.training.keras.solo import names_read
    try:
        with contextlib.chdir(source.folder):
            names = names_read(code, trial, splits)
    except Exception as error:  # the user's code: whatever it raises is the message
        raise BadInput(f"experiment: {source.name}: a first step failed: {one_line(error)}") from error
    return Signature.of(trial, names)
