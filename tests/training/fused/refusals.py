"""Experiments of a single model, and what the dry run says of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from raygpu import Splits, TorchExperiment
from raygpu.search.signature import Group
from raygpu.search.trials import Trial
from raygpu.training.fused.dry_run import obstacle
from tests.models import few

Make = Callable[[Mapping[str, Any]], nn.Module]


class Of(TorchExperiment):
    """The experiment of any model."""

    def __init__(self, make: Make) -> None:
        self.make = make

    def data(self) -> Splits:
        return few()

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return self.make(hp)


def trials(shape: Mapping[str, Any] | None = None, own: Sequence[Mapping[str, Any]] | None = None) -> list[Trial]:
    own = own or [{"lr": 0.1}, {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-2}, {"lr": 0.1, "clip_norm": 0.1}]
    return [Trial(Trial.name(i), 20 + i, {**(shape or {}), **values}) for i, values in enumerate(own)]


def why(experiment: TorchExperiment, found: Sequence[Trial] | None = None) -> str | None:
    return obstacle(experiment, experiment.data(), found or trials())


def reason(experiment: TorchExperiment, found: Sequence[Trial] | None = None) -> str:
    text = why(experiment, found)
    assert text is not None
    assert "\n" not in text
    assert len(text) <= 250
    return text


class Head(nn.Module):
    """A linear layer, the part to be looked at, and a linear layer."""

    def __init__(self, features: int = 8) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, features), nn.Linear(features, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.inside(torch.relu(self.first(x))))

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        return x


class If(Head):
    def inside(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


class Tempered(Head):
    """Reads a name in evaluation alone."""

    def __init__(self, hp: Mapping[str, Any]) -> None:
        super().__init__()
        self.hp = hp

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.training else x * self.hp["temperature"]


def ids(groups: Sequence[Group]) -> list[list[str]]:
    return [[trial.trial_id for trial in group.trials] for group in groups]
