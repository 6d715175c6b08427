"""Trainings alone and in arrays, compared in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from raygpu.experiment import Experiment
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.fused.model_array import TorchArray
from raygpu.training.torch.solo import TorchSolo
from tests.models import MODELS
from tests.torch_device import DEVICE

EPOCHS = 5
EXACT = 1e-9
"""In float64, over five epochs."""
SGD: list[dict[str, Any]] = [
    {"lr": 0.1},
    {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3},
    {"lr": 0.02, "momentum": 0.8, "nesterov": True, "schedule": "cosine", "warmup_epochs": 1},
    {"lr": 0.1, "momentum": 0.5, "weight_decay": 1e-2, "schedule": "step", "step_epochs": 2, "gamma": 0.5},
    {"lr": 0.03, "clip_norm": 0.5, "schedule": "cosine"},
]
ADAM: list[dict[str, Any]] = [
    {"lr": 0.01},
    {"lr": 0.003, "weight_decay": 0.1, "schedule": "cosine"},
    {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-4, "warmup_epochs": 1},
    {"lr": 0.02, "clip_norm": 0.5, "schedule": "step", "step_epochs": 2},
]


def members(shape: Mapping[str, Any], own: Sequence[Mapping[str, Any]], **common: Any) -> list[Trial]:
    """Trials that differ in their numbers and their seeds."""
    return [
        Trial(Trial.name(i), 10 + i, {"batch_size": 25, **shape, **common, **values}) for i, values in enumerate(own)
    ]


def settings(epochs: int = EPOCHS) -> Settings:
    return Settings(epochs, 1, "float32", Path())


def solo(experiment: Experiment, trial: Trial, dtype: torch.dtype | None, epochs: int = EPOCHS) -> TorchSolo:
    return TorchSolo(experiment, experiment.data(), trial, settings(epochs), DEVICE, dtype)


def new_array(
    experiment: Experiment,
    trials: Sequence[Trial],
    dtype: torch.dtype | None = torch.float64,
    epochs: int = EPOCHS,
    width: int | None = None,
) -> TorchArray:
    return TorchArray(experiment, experiment.data(), trials, settings(epochs), width=width, device=DEVICE, dtype=dtype)


def run(training: TorchArray | TorchSolo, epochs: int = EPOCHS) -> list[Any]:
    return [training.run_epoch() for _ in range(epochs)]


def parameters(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().to("cpu", copy=True) for name, p in model.named_parameters()}


def difference(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> float:
    """The largest relative norm of the difference over the tensors of `other`; infinite where one is not finite."""
    largest = 0.0
    for name, tensor in ((name, tensor.cpu()) for name, tensor in other.items()):
        assert one[name].dtype == tensor.dtype, name
        assert one[name].shape == tensor.shape, name
        apart, size = (one[name].cpu().double() - tensor.double()).norm(), tensor.double().norm()
        relative = (apart / size if size > 0 else apart).item()
        largest = max(largest, relative if math.isfinite(relative) else math.inf)
    return largest


def member_difference(array: TorchArray, trial: Trial, alone: Mapping[str, torch.Tensor]) -> float:
    return difference(array.member_state(trial.trial_id)["model"], alone)


def assert_members_equal(
    array: TorchArray, trials: Sequence[Trial], alone: Sequence[Mapping[str, torch.Tensor]], tolerance: float = EXACT
) -> None:
    for trial, expected in zip(trials, alone, strict=True):
        found = member_difference(array, trial, expected)
        assert found <= tolerance, f"{trial.trial_id}: {found}"


@cache
def sgd_alone(name: str) -> tuple[dict[str, torch.Tensor], ...]:
    """The parameters of the members of `SGD` after five epochs alone in float64."""
    kind, shape = MODELS[name]
    found = []
    for trial in members(shape, SGD):
        training = solo(kind(), trial, torch.float64)
        run(training)
        found.append(parameters(training.model))
    return tuple(found)
