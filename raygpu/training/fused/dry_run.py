"""Dry run of an array against the same trials alone, and the hyper-parameters that shape a trial's program."""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, assert_never

import torch
from torch import nn

from raygpu.config.generators import random_state_kept
from raygpu.config.sections import Precision
from raygpu.experiment import Experiment, Splits
from raygpu.search.hyperparameters import Hyperparameters
from raygpu.search.signature import differing_names
from raygpu.search.trials import EpochResult, Trial
from raygpu.training.base import NotAsAlone, Settings, build_model
from raygpu.training.fused.model_array import TorchArray
from raygpu.training.fused.refusal import IN_PARTS, OWN_OPTIMIZER, CodeWatch, refusal, slow_loops
from raygpu.training.fused.vmap_modes import without_fast_path
from raygpu.training.hyperparameters import READ_BY_RAYGPU, OptimizerSettings
from raygpu.training.modes import torch_modes_kept
from raygpu.training.own_copy import own_copy
from raygpu.training.torch.comparison import first_difference
from raygpu.training.torch.data import Tensors, rows, tensors
from raygpu.training.torch.experiment import forward, look, overrides, training_loss
from raygpu.training.torch.models import epoch_seed, initial_model
from raygpu.training.torch.parameter_average import unaveraged
from raygpu.training.torch.parameter_traits import hooked
from raygpu.training.torch.python_state import changed_attribute, plain_state
from raygpu.training.torch.reduction import backward, dense
from raygpu.training.torch.seeding import numpy_has_drawn, python_has_drawn
from raygpu.training.torch.solo import TorchSolo
from raygpu.training.torch.training_mode import set_training

NUM_SAMPLES = 8
"""Number of samples of the first steps, which measure how long a step takes."""
NUM_EPOCHS = 2
"""Epochs of a dry run: state that a model keeps between steps shows in the second."""
BUDGET_S = 10.0
"""Seconds of a dry run; if batches of the real size take longer, it uses smaller ones."""
COSTS = 16
"""Cost of a dry run per epoch, in steps of one training: four trials alone and in two tiles, in double precision."""
FORWARD_S = 3.0
"""Longest forward pass of a whole batch, in seconds, that is run to record the hyper-parameters that it reads."""
WARM_S = 0.5
"""Duration of the first steps, in seconds, below which they are not repeated."""
STEP, ADAM_STEP = 0.1, 0.01
"""Norm of a dry run's first step of SGD; learning rate of its steps of Adam."""
VISIBLE_CLIP_NORM, VISIBLE_EPS = 1.0, 1e-3
"""Smallest `clip_norm`, and smallest `eps` of Adam, in a dry run."""
VISIBLE_EMA_DECAY = 0.5
"""Largest `ema_decay` in a dry run."""
FAST_PATH = (
    "in evaluation torch's fast path of attention gives 0 at padded positions, and an array does not take it;"
    " nn.TransformerEncoder(..., enable_nested_tensor=False) gives the same in both"
)
"""Reason for which evaluations of an array differ from those of a trial alone."""
PROMOTED = (
    "an array gives a tensor the wider dtype of a number (a tensor without dimensions) that it meets; cast the number,"
    " as by .to(x.dtype)"
)
"""Reason for which operators of an array meet two dtypes, where those of a trial alone do not."""
PYTHONS = getattr(random.random, "__self__", None)
"""Generator behind the functions of the `random` module."""


def check(trial: Trial) -> None:
    """Raise ValueError if a trial's batch size or optimizer settings are invalid; such a trial has to fail alone."""
    OptimizerSettings.of(trial.hyperparameters)


@torch_modes_kept()
def names_read(experiment: Experiment, trial: Trial, splits: Splits) -> frozenset[str]:
    """Return the hyper-parameters that shape a trial's program. Raises any exception of the experiment, on the CPU."""
    experiment, hp = own_copy(experiment), Hyperparameters(trial.hyperparameters)
    with random_state_kept():
        model = initial_model(experiment, hp, trial.seed)
        started = time.perf_counter()
        _look(experiment, model, hp, splits, min(NUM_SAMPLES, splits.num_train))
        batch_size = min(OptimizerSettings.of(trial.hyperparameters).batch_size, splits.num_train)
        if batch_size > NUM_SAMPLES and (time.perf_counter() - started) * batch_size / NUM_SAMPLES < FORWARD_S:
            _look(experiment, model, hp, splits, batch_size)
    return frozenset(hp.names_read) | READ_BY_RAYGPU


def num_parameters(experiment: Experiment, trial: Trial) -> int | None:
    """Return the number of parameters of a trial's model, made without its memory; None if it cannot be made so."""
    try:
        with random_state_kept(), torch_modes_kept(), torch.device("meta"):
            model = build_model(own_copy(experiment), Hyperparameters(trial.hyperparameters))
        return sum(parameter.numel() for parameter in model.parameters())  # raises for lazy layers
    except Exception:  # noqa: BLE001 - many models need numbers, and no result depends on it
        return None


def _look(experiment: Experiment, model: nn.Module, hp: Hyperparameters, splits: Splits, count: int) -> list[str]:
    """Run the experiment on a batch of the first samples; return the parameters that a forward pass has changed."""
    few = splits.first(count)
    versions = {name: p._version for name, p in model.named_parameters()}
    set_training(model)
    look(experiment, model, partial(_copies, few), hp)
    inputs, targets = _copies(few)
    model.eval()
    with torch.no_grad():
        experiment.metrics(forward(model, inputs), targets)
    return [name for name, parameter in model.named_parameters() if parameter._version != versions[name]]


def _copies(few: Splits) -> tuple[Tensors, Tensors]:
    """Return the training samples as tensors of their own."""
    return rows(tensors(few.train_inputs), slice(None)), rows(tensors(few.train_targets), slice(None))


@torch_modes_kept()
def obstacle(
    experiment: Experiment, splits: Splits, trials: Sequence[Trial], precision: Precision = "float32"
) -> str | None:
    """Return why these trials of one signature cannot be fused, in a line that names the cause; None if they can.

    Each takes a few optimizer steps in an array and alone, in batches of the real size if that takes seconds only, and
    has to reach the same numbers. A model that keeps state in Python or draws random numbers that are not torch's is
    refused, and so is an operator without a rule for vmap, which would run as a slow loop.
    """
    if overrides(experiment, "optimizer"):
        return OWN_OPTIMIZER
    settings = OptimizerSettings.of(trials[0].hyperparameters)
    if len(settings.parts_of(settings.batch_size)) > 1:
        return IN_PARTS
    try:
        with random_state_kept():
            trials = _telling(experiment, splits, trials)
            part = _part(experiment, splits, trials[0])
            if (reason := _changed_in_place(experiment, part, trials[0])) is not None:
                return reason
            return _compared(experiment, part, trials) or _stopped(experiment, part, trials, precision)
    except NotAsAlone as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - whatever vmap or the user's code raises is the reason
        return refusal(error)


def _part(experiment: Experiment, splits: Splits, trial: Trial) -> Splits:
    """Return the first samples: a whole batch and a short one after it, or fewer samples if steps on them take long."""
    batch_size, few = OptimizerSettings.of(trial.hyperparameters).batch_size, _few(splits, trial)
    seconds = [WARM_S]
    while len(seconds) < 3 and seconds[-1] >= min(seconds):  # the first steps of a process take longer
        started = time.perf_counter()
        _TrialAlone(experiment, few, trial, None)
        seconds.append(time.perf_counter() - started)
    each = seconds[-1] / (NUM_EPOCHS * few.num_train)
    affordable = int(BUDGET_S / (NUM_EPOCHS * COSTS * each))
    return splits.first(max(few.num_train, min(batch_size + max(2, batch_size // 3), affordable)))


def _few(splits: Splits, trial: Trial) -> Splits:
    """Return the first samples, one batch of them."""
    return splits.first(max(2, min(NUM_SAMPLES, OptimizerSettings.of(trial.hyperparameters).batch_size)))


def _telling(experiment: Experiment, splits: Splits, trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials with steps large enough to show differences of their gradients, and no larger; each with a seed
    of its own, where several are repeats by one.

    Adam's step would otherwise be as large for a gradient that is nothing but rounding.
    """
    same_lr = "lr" not in differing_names(trials)
    lr = STEP / max(1.0, _gradient_norm(experiment, splits, trials[0]))
    telling_trials = []
    for place, trial in enumerate(trials):
        values = dict(trial.hyperparameters)
        if values.get("clip_norm") is not None:
            values["clip_norm"] = max(values["clip_norm"], VISIBLE_CLIP_NORM)
        if values.get("ema_decay") is not None:
            values["ema_decay"] = min(values["ema_decay"], VISIBLE_EMA_DECAY)
        match OptimizerSettings.of(values).optimizer:
            case "sgd":
                values["lr"] = lr * (1 if same_lr else 1 + place / 10)
            case "adam" | "adamw":
                values["lr"] = ADAM_STEP * (1 if same_lr else 1 + place / 10)
                values["eps"] = max(values.get("eps", 0.0), VISIBLE_EPS)
            case other:
                assert_never(other)
        telling_trials.append(replace(trial, seed=trials[0].seed + place, fold=None, hyperparameters=values))
    return telling_trials


def _gradient_norm(experiment: Experiment, splits: Splits, trial: Trial) -> float:
    """Return the norm of a trial's first gradient, on a few samples; 1 if it is not finite."""
    experiment, hp = own_copy(experiment), Hyperparameters(trial.hyperparameters)
    inputs, targets = _copies(splits.first(NUM_SAMPLES))
    model = initial_model(experiment, hp, trial.seed)
    set_training(model)
    loss = training_loss(experiment, model, inputs, targets, hp)
    backward(loss)
    norms = [dense(p.grad).float().norm() for p in model.parameters() if p.grad is not None]
    norm = torch.stack(norms).norm().item() if norms else 1.0
    return norm if math.isfinite(norm) else 1.0


def _draws_in_python(training: Callable[[], object]) -> bool:
    """Return whether a training draws from Python's global generator, in this thread: Ray's start may draw in
    others."""
    seen = False

    def watch(frame: FrameType, event: str, function: Any) -> None:
        """Note calls of the generator's methods that draw."""
        nonlocal seen
        drawn = event == "c_call" and getattr(function, "__self__", None) is PYTHONS
        seen = seen or (drawn and function.__name__ not in ("seed", "getstate", "setstate"))

    sys.setprofile(watch)
    try:
        training()
    finally:
        sys.setprofile(None)
    return seen


class _TrialAlone:
    """One trial trained alone: its results, and the traces of its Python code."""

    def __init__(self, experiment: Experiment, splits: Splits, trial: Trial, dtype: torch.dtype | None) -> None:
        experiment = own_copy(experiment)
        solo = TorchSolo(experiment, splits, trial, _settings("float32"), torch.device("cpu"), dtype)
        fresh = plain_state(solo.model, experiment)
        self.results = [solo.run_epoch()]
        self.plain = plain_state(solo.model, experiment)
        """Plain attributes after the first epoch: some models then keep tensors for speed."""
        for _ in range(NUM_EPOCHS - 1):
            self.results.append(solo.run_epoch())
        self.kept = {path: text for path, text in self.plain.items() if fresh.get(path) != text}
        """Plain attributes that the first epoch has set or changed, by path."""
        self.changed = changed_attribute(self.plain, plain_state(solo.model, experiment))
        last_seed = epoch_seed(trial.seed, solo.epoch)
        self.numpy_drew, self.python_drew = numpy_has_drawn(last_seed), python_has_drawn(last_seed)
        self.hook = hooked(solo.model)
        self.state: dict[str, torch.Tensor] = solo.model.state_dict()
        self.is_finite = all(bool(p.isfinite().all()) for p in solo.model.parameters())
        """Whether all parameters are finite at the end; a buffer may be infinite, as a mask of attention."""


def _alone(experiment: Experiment, splits: Splits, trials: Sequence[Trial]) -> tuple[list[_TrialAlone], torch.dtype]:
    """Train each trial alone, in double precision if its code takes it; return that dtype too."""
    for dtype in (torch.float64, torch.float32):
        try:
            return [_TrialAlone(experiment, splits, trial, dtype) for trial in trials], dtype
        except Exception:
            if dtype == torch.float32:
                raise
    raise AssertionError("not reached")


def _array(
    experiment: Experiment, splits: Splits, trials: Sequence[Trial], settings: Settings, dtype: torch.dtype | None
) -> TorchArray:
    """Make an array of two equal tiles: state that a model keeps in Python would pass from one to the other."""
    again = [replace(trial, trial_id=f"{trial.trial_id} again") for trial in trials]
    cpu = torch.device("cpu")
    array = TorchArray(experiment, splits, [*trials, *again], settings, width=len(trials), device=cpu, dtype=dtype)
    array.audits = False  # all members are compared
    return array


def _compared(experiment: Experiment, splits: Splits, trials: Sequence[Trial]) -> str | None:
    """Return why the array differs from the trials alone, or would in later steps; None if it does not."""
    with CodeWatch() as watch:
        expected, dtype = _alone(experiment, splits, trials)
    if (reason := _state_in_python(expected)) is not None:
        return reason
    if watch.reasons:
        return watch.reasons[0]
    first = expected[0]
    if first.numpy_drew or (
        first.python_drew and _draws_in_python(lambda: _TrialAlone(experiment, splits, trials[0], dtype))
    ):
        return "it draws Python's or NumPy's random numbers, which all members of an array would have in common"
    array = _array(experiment, splits, trials, _settings("float32"), dtype)
    with slow_loops() as loops, CodeWatch() as watch:
        epochs = [array.run_epoch() for _ in range(NUM_EPOCHS)]
    for reasons in (loops, watch.reasons):
        if reasons:
            return reasons[0]
    for member, alone in zip(array.trials, [*expected, *expected], strict=True):
        values, wanted = dict(unaveraged(array.member_state(member.trial_id))), dict(alone.state)
        for fused, result in zip(epochs, alone.results, strict=True):
            assert fused is not None
            assert result is not None
            values |= _numbers(fused[member.trial_id])
            wanted |= _numbers(result)
        if (name := first_difference(values, wanted, dtype)) is not None:
            if not _same_without_fast_path(experiment, splits, trials[0], first, dtype):
                return FAST_PATH
            return f"{name} of {member.trial_id.split()[0]} differs from the same trial alone: {_cause(expected)}"
    if not expected[0].is_finite:
        return "its parameters are not finite after a few steps, so that nothing can be compared"
    return None


def _same_without_fast_path(
    experiment: Experiment, splits: Splits, trial: Trial, expected: _TrialAlone, dtype: torch.dtype
) -> bool:
    """Return whether a trial alone has the same results without torch's fast path of attention."""
    with without_fast_path():
        without = _TrialAlone(experiment, splits, trial, dtype)
    return all(
        first_difference(_numbers(one), _numbers(other), dtype) is None
        for one, other in zip(without.results, expected.results, strict=True)
        if one is not None and other is not None
    )


def _stopped(experiment: Experiment, splits: Splits, trials: Sequence[Trial], precision: Precision) -> str | None:
    """Return why an array cannot train in the sweep's own precision, too rough to be compared; None if it can."""
    if precision in ("bf16", "fp16"):  # whose operators are not all there on a CPU
        TorchSolo(own_copy(experiment), splits, trials[0], _settings(precision), torch.device("cpu")).run_epoch()
    else:
        splits = _few(splits, trials[0])
    try:
        _array(experiment, splits, trials, _settings(precision), None).run_epoch()
    except RuntimeError as error:
        is_of_dtypes = "dtype" in str(error) or "scalar type" in str(error)
        return f"{PROMOTED}: {refusal(error)}" if is_of_dtypes else refusal(error)
    return None


def _numbers(result: EpochResult) -> dict[str, torch.Tensor]:
    return {f"{name} of epoch {result.epoch}": torch.tensor(value).double() for name, value in result.metrics.items()}


def _changed_in_place(experiment: Experiment, splits: Splits, trial: Trial) -> str | None:
    """Return a line on a parameter that a forward pass writes to; None without one. In an array it is not the member's
    own."""
    experiment, hp = own_copy(experiment), Hyperparameters(trial.hyperparameters)
    names = _look(experiment, initial_model(experiment, hp, trial.seed), hp, splits, splits.num_train)
    return f"a forward pass changes the parameter {names[0]} in place" if names else None


def _state_in_python(expected: Sequence[_TrialAlone]) -> str | None:
    """Return why one member's Python code cannot stand for the others, by its traces in trainings alone; None if it
    can."""
    for alone in expected:
        if alone.hook is not None:
            return f"{alone.hook}, which does not run in an array"
        if alone.changed is not None:
            is_pruned = f"{alone.changed.partition('.')[2]}_mask" in alone.state  # its names of masks
            by = ", as torch.nn.utils.prune sets it in each forward pass" if is_pruned else ""
            return f"{alone.changed} changes while it trains{by}: Python code of an array runs once for all its members"
    for path, text in expected[0].kept.items():
        if any(alone.plain.get(path) != text for alone in expected):
            return f"{path} is set while it trains, by each trial to another value: an array would have one for all"
    return None


def _cause(expected: Sequence[_TrialAlone]) -> str:
    """Return an explanation of why a member differs from the same trial alone."""
    for alone in expected[1:]:
        if (path := changed_attribute(expected[0].plain, alone.plain)) is not None:
            return f"{path} differs between trials, and is no parameter or buffer, and does not come from reading hp"
    return "vmap does not follow something that the model does, or computes an operator differently"


def _settings(precision: Precision) -> Settings:
    return Settings(NUM_EPOCHS, torch.get_num_threads(), precision, Path())
