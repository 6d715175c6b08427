"""A check, before anything is started, that a checkpoint holds what a training changes: it is loaded again, scored, and
gone on from."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from raygpu.errors import one_line
from raygpu.experiment import Experiment, Hyperparameters, Splits
from raygpu.search.trials import EpochResult, Trial
from raygpu.training.base import Settings
from raygpu.training.data.generators import random_state_kept
from raygpu.training.own_copy import own_copy
from raygpu.training.torch.models import initial_model
from raygpu.training.torch.python_state import changed_attribute, plain_state
from raygpu.training.torch.solo import TorchSolo

MOST_PARAMETERS = 10_000_000
"""Number of parameters above which the check would take too long."""
SMALL_BATCH = 3
"""Number of samples of a step: with 8 samples, an epoch has three steps."""
RELATIVE, ABSOLUTE = 1e-4, 1e-6
"""Largest difference of two numbers that count as equal."""
KEPT = "what a model changes is kept in persistent buffers, and what an optimizer changes by its state_dict()"


class _TrainingFailed(Exception):
    """The training cannot take such small batches."""


class NotLoadable(ValueError):
    """A checkpoint of this training cannot be loaded."""


@dataclass(frozen=True, slots=True)
class CheckpointCheck:
    """Differences that a checkpoint makes, each as a line; None where there is none."""

    scores: str | None = None
    """Line on scores of a loaded model that differ: on test data, in MLflow and by `load_model` it is another one."""
    going_on: str | None = None
    """Line on metrics of a training that goes on."""


def check_checkpoint(experiment: Experiment, splits: Splits, hp: Mapping[str, Any]) -> CheckpointCheck:
    """Train for two epochs on a few samples, on the CPU, and from a checkpoint for the second one again.

    Nothing is checked of a large model. Raises NotLoadable if the checkpoint cannot be loaded.
    """
    for values in ({**hp, "batch_size": SMALL_BATCH}, hp):  # the first one takes more steps
        with contextlib.suppress(_TrainingFailed):
            return _check(experiment, splits, values)
    return CheckpointCheck()


def _check(experiment: Experiment, splits: Splits, hp: Mapping[str, Any]) -> CheckpointCheck:
    def begun() -> TorchSolo:
        """Return a training that has not begun, of a copy of the experiment."""
        settings = Settings(2, torch.get_num_threads(), "float32", Path())
        return TorchSolo(own_copy(experiment), splits, Trial("t0000", 0, hp), settings, torch.device("cpu"))

    with random_state_kept():
        whole = begun()
        if sum(parameter.numel() for parameter in whole.model.parameters()) > MOST_PARAMETERS:
            return CheckpointCheck()
        first = _epoch(whole)
        with tempfile.TemporaryDirectory(prefix="raygpu-") as folder:
            scored, resumed = begun(), begun()
            try:
                whole.save(Path(folder))
                scored.load_parameters(Path(folder))
                resumed.load(Path(folder))
            except Exception as error:
                raise NotLoadable(f"a checkpoint after a first step cannot be loaded: {_reason(error)}") from error
        loaded = {f"validation/{name}": value for name, value in scored.evaluate().items()}
        in_training = {name: value for name, value in first.items() if name in loaded}
        second, again = _epoch(whole), _epoch(resumed)
        differ = (_difference(in_training, loaded), _difference(second, again))
        if differ != (None, None) and not _is_repeatable(begun, first, second):
            return CheckpointCheck()
    named = next((note.partition(" changes while")[0] for note in resumed.notes), None)
    what = f"{named} changes" if named else "something changes"
    scores = f"{what} while it trains, and a checkpoint does not hold it: a loaded model has {differ[0]}; {KEPT}"
    going_on = f"{what} while it trains, and a checkpoint does not hold it: a training that goes on has {differ[1]}"
    return CheckpointCheck(scores if differ[0] else None, f"{going_on}; {KEPT}" if differ[1] else None)


def _reason(error: Exception) -> str:
    """Return an error's text in a line; of torch's advice on an object that `weights_only=True` does not take, the
    part that names it."""
    _, found, text = str(error).partition("WeightsUnpickler error:")
    if not found:
        return one_line(error)
    what = text.strip().partition("\n")[0].partition(". Please")[0]
    return f"{what} (a state_dict() may have numbers, strings, lists, dicts, arrays and tensors)"


def drawn_attribute(experiment: Experiment, hp: Mapping[str, Any]) -> str | None:
    """Return the path of a plain attribute of the model that differs between two seeds, as a fixed permutation that
    `model(hp)` draws; None without one."""
    with random_state_kept():
        states = []
        for seed in (0, 1):
            code = own_copy(experiment)
            states.append(plain_state(initial_model(code, Hyperparameters(hp), seed), code))
    return changed_attribute(*states)


def _epoch(training: TorchSolo) -> dict[str, float]:
    try:
        result = training.run_epoch()
    except Exception as error:
        raise _TrainingFailed from error
    assert isinstance(result, EpochResult), "the check trains no more epochs than there are"
    return dict(result.metrics)


def _is_repeatable(begun: Callable[[], TorchSolo], first: Mapping[str, float], second: Mapping[str, float]) -> bool:
    """Return whether the training gives the same numbers again without a checkpoint."""
    training = begun()
    return _difference(first, _epoch(training)) is None and _difference(second, _epoch(training)) is None


def _difference(wanted: Mapping[str, float], found: Mapping[str, float]) -> str | None:
    """Return the first metric that differs in words; None if all are equal."""
    for name, value in wanted.items():
        other = found.get(name, math.nan)
        both_nan = math.isnan(value) and math.isnan(other)
        if not both_nan and not math.isclose(value, other, rel_tol=RELATIVE, abs_tol=ABSOLUTE):
            return f"{name} {other:.6g} in place of {value:.6g} after a first step"
    return None
