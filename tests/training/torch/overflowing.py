"""Experiments whose gradient is not finite in some batches, as of fp16, at a finite loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from raygpu import Mean, Splits, TorchExperiment
from tests.models import few

FLAGGED = 3
"""A class."""


class Overflowing(TorchExperiment):
    """A norm of the flagged samples' outputs is part of the loss: without any it is 0, where it has no derivative."""

    def data(self) -> Splits:
        return few()

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))

    def loss(self, outputs: Any, targets: Any) -> Any:
        flagged = (outputs * (targets == FLAGGED)[:, None]).square().sum()
        return cross_entropy(outputs, targets) + 0.01 * flagged.sqrt()

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"accuracy": (outputs.argmax(dim=-1) == targets).float().mean()}


class OverflowingSamples(Overflowing):
    """A mean over samples; a flagged one has no derivative."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        norms = (outputs * (targets != FLAGGED)[:, None]).square().sum(dim=1).sqrt()
        return cross_entropy(outputs, targets) + 0.01 * norms.mean()


class OverflowingMean(OverflowingSamples):
    """The same as numerator and denominator."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        return Mean(super().loss(outputs, targets) * len(targets), torch.tensor(len(targets)))


class OverflowingLoss(Overflowing):
    """Loss and gradient of a batch without a flagged sample are no numbers, as if the forward pass had overflowed."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        return cross_entropy(outputs, targets) * torch.where((targets == FLAGGED).any(), 1.0, torch.inf)


class NoLoss(Overflowing):
    """No batch has a finite loss."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        return cross_entropy(outputs, targets) * torch.inf


class Rotating(Overflowing):
    """With complex parameters."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 12), _Rotation(), nn.ReLU(), nn.Linear(12, 10))


class _Rotation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.turns = nn.Parameter(torch.ones(6, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.to(self.turns.dtype.to_real()).unflatten(-1, (6, 2)))
        return torch.view_as_real(pairs * self.turns.conj()).flatten(-2)


class Hopeless(Overflowing):
    """Its gradient is finite in no batch."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        return cross_entropy(outputs, targets) + (outputs * 0).square().sum().sqrt()
