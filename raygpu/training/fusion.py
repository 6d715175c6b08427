"""Whether trials can be fused: what shapes their program, and a dry run of an array against the same trials alone."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from raygpu.errors import one_line
from raygpu.experiment import Experiment, Hyperparameters, Splits, take
from raygpu.training.base import Settings
from raygpu.training.hyperparameters import OptimizerSettings, batch_size
from raygpu.training.torch_array import TorchArray
from raygpu.training.torch_data import rows, tensors
from raygpu.training.torch_solo import TorchSolo, forward, initial_model
from raygpu.trials import Trial

READ_BY_RAYGPU = frozenset({"batch_size", "optimizer"})
NUM_SAMPLES = 8
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}
"""The largest relative norm of the difference that rounding explains after a step."""
FALLBACK = re.compile(r"(aten::\w+|\w+::\w+)")


def names_read(experiment: Experiment, trial: Trial, splits: Splits) -> frozenset[str]:
    """The hyper-parameters that shape a trial's program. Raises what the experiment raises, on the CPU."""
    hp = Hyperparameters(trial.hyperparameters)
    batch_size(hp)
    OptimizerSettings.of(hp)  # a trial with bad numbers fails alone
    hp.names_read.clear()
    model = initial_model(experiment, hp, trial.seed)
    few = slice(0, min(NUM_SAMPLES, splits.num_train))
    with torch.no_grad():
        inputs = experiment.augment(rows(tensors(splits.train_inputs), few), hp)
        experiment.loss(forward(model, inputs), rows(tensors(splits.train_targets), few))
    return frozenset(hp.names_read) | READ_BY_RAYGPU


def obstacle(experiment: Experiment, splits: Splits, trials: Sequence[Trial]) -> str | None:
    """Why these trials of one signature cannot be fused, in a line that names the operator; None if they can.

    Each takes one optimizer step in an array and one alone, on the same few samples; what random operators give is
    replaced by constants in both. An operator without a rule for vmap, which runs as a slow loop, is an obstacle too.
    """
    part = _few(splits, max(2, min(NUM_SAMPLES, batch_size(trials[0].hyperparameters))))
    settings = Settings(1, torch.get_num_threads(), "float32", Path())
    reason: str | None = None
    for dtype in (torch.float64, torch.float32):
        try:
            alone = [_trained_alone(experiment, part, trial, settings, dtype) for trial in trials]
        except Exception as error:  # noqa: BLE001 - the user's code, which may know one precision only
            reason = f"it fails alone: {one_line(error)}"
            continue
        return _compared(experiment, part, trials, settings, dtype, alone)
    return reason


def _compared(
    experiment: Experiment,
    splits: Splits,
    trials: Sequence[Trial],
    settings: Settings,
    dtype: torch.dtype,
    alone: Sequence[dict[str, torch.Tensor]],
) -> str | None:
    with warnings.catch_warnings(record=True) as caught, _NoChance():
        warnings.simplefilter("always")
        try:
            array = TorchArray(experiment, splits, trials, settings, device=torch.device("cpu"), dtype=dtype)
            array.run_epoch()
        except Exception as error:  # noqa: BLE001 - whatever vmap or the user's code raises is the reason
            return _refusal(error)
    for warning in caught:
        if "batching rule" in str(warning.message):
            found = FALLBACK.search(str(warning.message))
            return f"{found.group(0) if found else 'an operator'} runs as a slow loop under vmap"
    for trial, expected in zip(trials, alone, strict=True):
        fused = array.member_state(trial.trial_id)["model"]
        for name, tensor in expected.items():
            if tensor.is_floating_point() and _difference(fused[name], tensor) > TOLERANCE[dtype]:
                return (
                    f"{name} of {trial.trial_id} differs from the same trial alone after one step:"
                    " the model depends on something that it does not read from hp"
                )
    return None


def _trained_alone(
    experiment: Experiment, splits: Splits, trial: Trial, settings: Settings, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    with _NoChance():
        solo = TorchSolo(experiment, splits, trial, settings, torch.device("cpu"), dtype)
        solo.run_epoch()
    return solo.model.state_dict()


def _difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """The relative norm; 0 where both hold the same NaNs and infinities."""
    if not bool(b.isfinite().all()):
        return 0.0 if torch.equal(a.isfinite(), b.isfinite()) else float("inf")
    return ((a - b).norm() / b.norm().clamp(min=1e-8)).item()


def _few(splits: Splits, count: int) -> Splits:
    """The first samples, for one step and one small evaluation."""
    some = slice(0, count)
    return Splits(
        take(splits.train_inputs, some),
        take(splits.train_targets, some),
        take(splits.validation_inputs, some),
        take(splits.validation_targets, some),
    )


def _refusal(error: Exception) -> str:
    """vmap's message, without what only its developers need."""
    text = one_line(error)
    if "data-dependent control flow" in text:
        return "data-dependent control flow: a Tensor decides a Python `if`, or is turned into a number"
    if "Batching rule not implemented for" in text:
        found = FALLBACK.search(text)
        return f"{found.group(0) if found else 'an operator'} has no rule for vmap"
    return text.split(" Please ")[0].split("; please ")[0][:200]


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
            case "aten::uniform_" | "aten::normal_" | "aten::rand" | "aten::rand_like" | "aten::randn":
                return result.fill_(0.5)
            case "aten::randn_like" | "aten::normal" | "aten::normal_functional":
                return result.fill_(0.5)
            case "aten::random_" | "aten::randint" | "aten::randint_like" | "aten::multinomial":
                return result.fill_(0)
            case "aten::native_dropout":
                kept = 1 - args[1]  # as the other form of dropout, which multiplies by bernoulli / kept
                return args[0] / kept if kept else torch.zeros_like(args[0]), torch.ones_like(result[1])
        return result
