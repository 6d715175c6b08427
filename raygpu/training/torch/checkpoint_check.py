"""A check, before anything is started, that a checkpoint holds what a training changes: it is loaded again, scored, and
gone on from."""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from raygpu.config.generators import random_state_kept
from raygpu.errors import one_line
from raygpu.experiment import Experiment, Splits
from raygpu.search.hyperparameters import Hyperparameters
from raygpu.search.trials import EpochResult, Trial
from raygpu.training.base import Settings, build_model
from raygpu.training.own_copy import own_copy
from raygpu.training.torch.own_optimizer import OwnOptimizer
from raygpu.training.torch.python_state import plain_state
from raygpu.training.torch.seeding import seed_all
from raygpu.training.torch.several_optimizers import SeveralOptimizers
from raygpu.training.torch.solo import TorchSolo

MOST_PARAMETERS = 10_000_000
"""Number of parameters above which the check would take too long."""
MOST_S = 3.0
"""Seconds of an epoch of a few samples above which the same holds."""
SMALL_BATCH = 3
"""Number of samples of a step: with 8 samples, an epoch has three steps."""
RELATIVE, ABSOLUTE = 1e-4, 1e-6
"""Largest difference of two numbers that count as equal."""
KEPT = "what a model changes is kept in persistent buffers, and what an optimizer changes by its state_dict()"
SIZES = "size mismatch"
"""Words of torch's fault for a tensor that has grown."""


class _NotChecked(Exception):
    """The training cannot be made again, or does not take such small batches."""


class NotLoadable(ValueError):
    """A checkpoint of this training cannot be loaded."""


@dataclass(frozen=True, slots=True)
class CheckpointCheck:
    """Differences that a checkpoint makes, each as a line; None where there is none."""

    lost_metrics: frozenset[str] = frozenset()
    """Names of the metrics of a loaded model that differ."""
    scores: str | None = None
    """Line on scores of a loaded model that differ: on test data, in MLflow and by `load_model` it is another one."""
    going_on: str | None = None
    """Line on metrics of a training that goes on."""


def check_checkpoint(experiment: Experiment, splits: Splits, hp: Mapping[str, Any]) -> CheckpointCheck:
    """Train for two epochs on a few samples, on the CPU, and from a checkpoint for the second one again.

    Nothing is checked of a large model. Raises NotLoadable if the checkpoint cannot be loaded.
    """
    for values in ({**hp, "batch_size": SMALL_BATCH}, hp):  # the first one takes more steps
        with contextlib.suppress(_NotChecked):
            return _check(experiment, splits, values)
    return CheckpointCheck()


def _check(experiment: Experiment, splits: Splits, hp: Mapping[str, Any]) -> CheckpointCheck:
    def begun() -> TorchSolo:
        """Return a training that has not begun, of a copy of the experiment."""
        settings = Settings(2, torch.get_num_threads(), "float32", Path())
        try:
            return TorchSolo(own_copy(experiment), splits, Trial("t0000", 0, hp), settings, torch.device("cpu"))
        except Exception as error:  # it returns a model's parameters once
            raise _NotChecked from error

    with random_state_kept():
        reference = begun()
        if sum(parameter.numel() for parameter in reference.model.parameters()) > MOST_PARAMETERS:
            return CheckpointCheck()
        began = time.perf_counter()
        first = _epoch(reference)
        if time.perf_counter() - began > MOST_S:
            return CheckpointCheck()
        with tempfile.TemporaryDirectory(prefix="raygpu-") as folder:
            scored, resumed = begun(), begun()
            try:
                reference.save(Path(folder))
                scored.load_parameters(Path(folder))
                resumed.load(Path(folder))
            except Exception as error:
                raise NotLoadable(f"a checkpoint after a first step cannot be loaded: {_reason(error)}") from error
        in_training, loaded = _scores(reference), _scores(scored)
        second, again = _epoch(reference), _epoch(resumed)
        scores, going_on = _differences(in_training, loaded), _differences(second, again)
        attributes, of_resumed, of_repeated = _of_optimizer(reference), _of_optimizer(resumed), dict[str, str]()
        if scores or going_on or attributes != of_resumed:
            repeated = begun()
            if _differences(first, _epoch(repeated)) or _differences(second, _epoch(repeated)):
                return CheckpointCheck()
            of_repeated = _of_optimizer(repeated)
        attribute = next(
            (
                name
                for name, text in attributes.items()
                if of_resumed.get(name) != text == of_repeated.get(name)  # neither a time nor an object's own number
            ),
            None,
        )
    named = next((note.partition(" changes while")[0] for note in resumed.notes), None)
    named = None if named in reference.model.state_dict() else named  # changed by what a Python attribute decides
    named = named or attribute
    change = f"{named} changes" if named else "something changes"
    lost = f"{change} while it trains, and a checkpoint does not hold it"
    effect = f"has {next(iter(going_on.values()))}" if going_on else "may have other numbers"
    return CheckpointCheck(
        frozenset(scores),
        f"{lost}: a loaded model has {next(iter(scores.values()))}; {KEPT}" if scores else None,
        f"{lost}: a training that goes on {effect}; {KEPT}" if going_on or attribute else None,
    )


def _of_optimizer(training: TorchSolo) -> dict[str, str]:
    """Return texts of the plain attributes of an experiment's own optimizer and scheduler."""
    if not isinstance(training.optimizer, OwnOptimizer | SeveralOptimizers):
        return {}
    return {name: repr(value) for name, value in training.optimizer.plain_attributes().items()}


def _reason(error: Exception) -> str:
    """Return an error's text in a line; of torch's advice on an object that `weights_only=True` does not take, the
    part that names it."""
    _, separator, text = str(error).partition("WeightsUnpickler error:")
    if not separator:
        grown = "; a buffer keeps the size that it has in model(hp)" if SIZES in str(error) else ""
        return f"{one_line(error)}{grown}"
    reason = text.strip().partition("\n")[0].partition(". Please")[0]
    return f"{reason} (a state_dict() may have numbers, strings, lists, dicts, arrays and tensors)"


def drawn_attribute(experiment: Experiment, hp: Mapping[str, Any]) -> str | None:
    """Return the path of a plain attribute, or of a buffer with `persistent=False`, that differs between two seeds.

    None without one. An example is a fixed permutation that `model(hp)` draws.
    """
    with random_state_kept():
        first, second, other = (_not_saved(own_copy(experiment), Hyperparameters(hp), seed) for seed in (0, 0, 1))
    repeated = {path: text for path, text in first.items() if second.get(path) == text}  # not counters nor times
    return next((path for path, text in repeated.items() if other.get(path) != text), None)


def _not_saved(experiment: Experiment, hp: Hyperparameters, seed: int) -> dict[str, str]:
    """Return texts of what a new model has outside its state dict, by path."""
    seed_all(seed)
    model = build_model(experiment, hp)
    saved = model.state_dict()
    buffers = {name: repr(buffer.tolist()) for name, buffer in model.named_buffers() if name not in saved}
    return plain_state(model, experiment) | buffers


def _epoch(training: TorchSolo) -> dict[str, float]:
    try:
        result = training.run_epoch()
    except Exception as error:
        raise _NotChecked from error
    assert isinstance(result, EpochResult), "the check trains no more epochs than there are"
    return dict(result.metrics)


def _scores(training: TorchSolo) -> dict[str, float]:
    seed_all(0)  # a loss may draw
    try:
        return {f"validation/{name}": value for name, value in training.evaluate().items()}
    except Exception as error:
        raise _NotChecked from error


def _differences(wanted: Mapping[str, float], found: Mapping[str, float]) -> dict[str, str]:
    """Return the metrics that differ, each in words."""
    differ = {}
    for name, value in wanted.items():
        other = found.get(name, math.nan)
        both_nan = math.isnan(value) and math.isnan(other)
        if not both_nan and not math.isclose(value, other, rel_tol=RELATIVE, abs_tol=ABSOLUTE):
            differ[name] = f"{name} {other:.6g} in place of {value:.6g} after a first step"
    return differ
