"""Whether trials can be fused: what shapes their program, and a dry run of an array against the same trials alone."""

from __future__ import annotations

import random
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from raygpu.errors import one_line
from raygpu.experiment import Experiment, Hyperparameters, Splits
from raygpu.sections import Precision
from raygpu.training.base import Settings
from raygpu.training.hyperparameters import READ_BY_RAYGPU, OptimizerSettings, batch_size
from raygpu.training.torch_array import TorchArray
from raygpu.training.torch_data import rows, tensors
from raygpu.training.torch_solo import TorchSolo, forward, initial_model
from raygpu.trials import EpochResult, Trial

NUM_SAMPLES = 8
NUM_EPOCHS = 2
"""Of one step each: what a model keeps between steps shows in the second."""
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}
"""The largest relative norm of the difference that rounding explains after these steps."""
VISIBLE = {"lr": 0.1, "clip_norm": 1.0}
"""The least of each that a dry run takes."""
PYTHONS = getattr(random.random, "__self__", None)
"""The generator that the functions of `random` draw from."""
Chance = Callable[[], AbstractContextManager[Any]]
FALLBACK = re.compile(r"(aten::\w+|\w+::\w+)")


def check(trial: Trial) -> None:
    """Whether raygpu's own numbers of a trial are sound; a trial with bad ones has to fail alone. Raises ValueError."""
    batch_size(trial.hyperparameters)
    OptimizerSettings.of(trial.hyperparameters)


def names_read(experiment: Experiment, trial: Trial, splits: Splits) -> frozenset[str]:
    """The hyper-parameters that shape a trial's program. Raises what the experiment raises, on the CPU."""
    hp = Hyperparameters(trial.hyperparameters)
    model = initial_model(experiment, hp, trial.seed)
    few = slice(0, min(NUM_SAMPLES, splits.num_train))
    inputs, targets = rows(tensors(splits.train_inputs), few), rows(tensors(splits.train_targets), few)
    with torch.no_grad():
        experiment.loss(forward(model, experiment.augment(inputs, hp)), targets)
        model.eval()
        experiment.metrics(forward(model, inputs), targets)
    return frozenset(hp.names_read) | READ_BY_RAYGPU


def obstacle(
    experiment: Experiment, splits: Splits, trials: Sequence[Trial], precision: Precision = "float32"
) -> str | None:
    """Why these trials of one signature cannot be fused, in a line that names the operator; None if they can.

    Each takes a few optimizer steps in an array and alone, on the same few samples; what random operators give is
    replaced by constants in both. An operator without a rule for vmap, which runs as a slow loop, is an obstacle too.
    """
    part = splits.first(max(2, min(NUM_SAMPLES, batch_size(trials[0].hyperparameters))))
    trials = [_telling(trial) for trial in trials]
    before = np.random.get_state(legacy=False), random.getstate()
    try:
        if precision == "bf16":  # too rough to be compared, but it has to run
            _array(experiment, part, trials, _settings(precision), None).run_epoch()
        # Without chance first: most models draw nothing, and the constants cost an import of seconds.
        differs = _compared(experiment, part, trials, nullcontext) and _compared(experiment, part, trials, _NoChance)
        if differs is None and _draws(
            before, lambda: _trained(experiment, part, trials[0], torch.float32, nullcontext)
        ):
            return "it draws Python's or NumPy's random numbers, which all members of an array would have in common"
        return differs
    except Exception as error:  # noqa: BLE001 - whatever vmap or the user's code raises is the reason
        return _refusal(error)


def _telling(trial: Trial) -> Trial:
    """The trial with steps that are large enough to show what differs in its gradients."""
    values = dict(trial.hyperparameters)
    values |= {name: max(values[name], least) for name, least in VISIBLE.items() if values.get(name) is not None}
    return replace(trial, hyperparameters=values)


def _draws(before: tuple[Any, Any], training: Callable[[], object]) -> bool:
    """Whether a training draws random numbers that are not torch's. before: the states before a dry run of it."""
    numpys, pythons = before
    if repr(np.random.get_state(legacy=False)) != repr(numpys):
        return True
    if random.getstate() == pythons:
        return False
    seen = False  # but other threads may have drawn them: what starts Ray does

    def watch(frame: FrameType, event: str, function: Any) -> None:
        nonlocal seen
        seen = seen or (event == "c_call" and getattr(function, "__self__", None) is PYTHONS)

    sys.setprofile(watch)  # of this thread alone
    try:
        training()
    finally:
        sys.setprofile(None)
    return seen


def _alone(
    experiment: Experiment, splits: Splits, trials: Sequence[Trial], chance: Chance
) -> tuple[list[tuple[dict[str, torch.Tensor], EpochResult]], torch.dtype]:
    """Parameters and results of each trial alone, in double precision if its code knows it."""
    for dtype in (torch.float64, torch.float32):
        try:
            return [_trained(experiment, splits, trial, dtype, chance) for trial in trials], dtype
        except Exception:
            if dtype == torch.float32:
                raise
    raise AssertionError("not reached")


def _trained(
    experiment: Experiment, splits: Splits, trial: Trial, dtype: torch.dtype, chance: Chance
) -> tuple[dict[str, torch.Tensor], EpochResult]:
    solo = TorchSolo(experiment, splits, trial, _settings("float32"), torch.device("cpu"), dtype)
    with chance():
        for _ in range(NUM_EPOCHS):
            result = solo.run_epoch()
    assert result is not None
    return solo.model.state_dict(), result


def _array(
    experiment: Experiment, splits: Splits, trials: Sequence[Trial], settings: Settings, dtype: torch.dtype | None
) -> TorchArray:
    """Two equal tiles: what a model keeps in Python between its steps would pass from one to the other."""
    again = [replace(trial, trial_id=f"{trial.trial_id} again") for trial in trials]
    cpu = torch.device("cpu")
    return TorchArray(experiment, splits, [*trials, *again], settings, width=len(trials), device=cpu, dtype=dtype)


def _compared(experiment: Experiment, splits: Splits, trials: Sequence[Trial], chance: Chance) -> str | None:
    """What differs between the array and the trials alone. chance: around the steps of both."""
    expected, dtype = _alone(experiment, splits, trials, chance)
    array = _array(experiment, splits, trials, _settings("float32"), dtype)
    with warnings.catch_warnings(record=True) as caught, chance():
        warnings.simplefilter("always")
        for _ in range(NUM_EPOCHS):
            results = array.run_epoch()
    for warning in caught:
        if "batching rule" in str(warning.message):
            found = FALLBACK.search(str(warning.message))
            return f"{found.group(0) if found else 'an operator'} runs as a slow loop under vmap"
    assert results is not None
    for member, (state, alone) in zip(array.trials, [*expected, *expected], strict=True):
        fused, result = array.member_state(member.trial_id)["model"], results[member.trial_id]
        pairs = {name: (fused[name], value) for name, value in state.items()}
        for name, value in alone.metrics.items():
            pairs[name] = (torch.tensor(result.metrics[name]).double(), torch.tensor(value).double())
        for name, (own, value) in pairs.items():
            if _difference(own, value) > TOLERANCE[dtype]:
                who = member.trial_id.split()[0]
                return (
                    f"{name} of {who} differs from the same trial alone after {NUM_EPOCHS} steps: the model depends on"
                    " something that it does not read from hp, or changes itself as vmap cannot follow"
                )
    return None


def _settings(precision: Precision) -> Settings:
    return Settings(NUM_EPOCHS, torch.get_num_threads(), precision, Path())


def _difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """The relative norm; 0 where both hold the same NaNs and infinities. Of whole numbers: infinite unless equal."""
    if not b.is_floating_point() and not b.is_complex():
        return 0.0 if torch.equal(a, b) else float("inf")
    if not bool(b.isfinite().all()):
        return 0.0 if torch.equal(a.isfinite(), b.isfinite()) else float("inf")
    return ((a - b).norm() / b.norm().clamp(min=1e-8)).item()


def _refusal(error: Exception) -> str:
    """vmap's message, without what only its developers need."""
    text = one_line(error)
    if "data-dependent control flow" in text:
        return "data-dependent control flow: a Tensor decides a Python `if`, or is turned into a number"
    if "Batching rule not implemented for" in text:
        found = FALLBACK.search(text)
        return f"{found.group(0) if found else 'an operator'} has no rule for vmap"
    text = text.removeprefix("RuntimeError: vmap: ").removeprefix("RuntimeError: ")
    return re.split(r" Please |; please |\. For more| See https| We ", text)[0][:200]


class _NoChance(TorchDispatchMode):
    """Random operators give constants: an array and a training alone can then be compared."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        result = func(*args, **kwargs)
        match name:
            # vmap replaces an operator in place by the other one: both give the same.
            case "aten::bernoulli_" | "aten::bernoulli":
                return result.fill_(1)
            case "aten::randperm":
                return torch.arange(len(result), dtype=result.dtype).to(result.device)
            case (
                "aten::exponential_"
                | "aten::exponential"
                | "aten::uniform_"
                | "aten::normal_"
                | "aten::rand"
                | "aten::rand_like"
                | "aten::randn"
            ):
                return result.fill_(0.5)
            case "aten::randn_like" | "aten::normal" | "aten::normal_functional":
                return result.fill_(0.5)
            case "aten::random_" | "aten::randint" | "aten::randint_like" | "aten::multinomial":
                return result.fill_(0)
            case "aten::native_dropout":
                kept = 1 - args[1]  # as the other form of dropout, which multiplies by bernoulli / kept
                return args[0] / kept if kept else torch.zeros_like(args[0]), torch.ones_like(result[1])
        return result
