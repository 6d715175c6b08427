"""Models that are evaluated with a moving average of their parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.contracts.zoo.entry import CLASSES, WIDTH, Inside, Vectors
from tests.contracts.zoo.losses import Perceptron


class Averaged(Perceptron):
    """Two averages, and a neighbour without one."""

    own = (
        {"lr": 0.05, "ema_decay": 0.9},
        {"lr": 0.1, "momentum": 0.9, "ema_decay": 0.5},
        {"lr": 0.02, "momentum": 0.5, "weight_decay": 1e-2, "clip_norm": 0.5},
    )
    compiled = True


class AveragedAdam(Perceptron):
    """Moments beside the averages."""

    own = tuple({"optimizer": "adam", "lr": 0.01, "ema_decay": decay} for decay in (0.0, 0.8, 0.99))


class AveragedStatistics(Vectors):
    """Buffers are averaged if they have a fraction, and a parameter is frozen. Momentum moves the statistics fast."""

    own = Averaged.own
    production = "BatchNorm"

    def model(self, hp: Any) -> nn.Module:
        made = nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8, momentum=0.5), nn.ReLU(), nn.Linear(8, CLASSES))
        made[0].bias.requires_grad_(False)
        return made


class AveragedMask(Vectors):
    """A buffer that is infinite and never changes, beside a neighbour without an average."""

    own = Averaged.own

    def model(self, hp: Any) -> nn.Module:
        class Masked(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner, self.last = nn.Linear(WIDTH, 9), nn.Linear(3, CLASSES)
                self.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                scores = self.inner(x).unflatten(-1, (3, 3)) + self.mask
                return self.last(scores.softmax(-1).sum(-2))

        return Masked()


class AveragedTied(Vectors):
    """One matrix in two places."""

    own = Averaged.own

    def model(self, hp: Any) -> nn.Module:
        made = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES))
        made[2].weight = made[0].weight
        return made


class AveragedOwnOptimizer(Perceptron):
    """An optimizer of the experiment's own, which never steps as an array."""

    own = tuple({"lr": lr, "ema_decay": 0.8} for lr in (0.01, 0.02, 0.03))
    fused = "optimizer"

    def optimizer(self, model: nn.Module, hp: Any) -> torch.optim.Optimizer:
        return torch.optim.RMSprop(model.parameters(), lr=hp["lr"])


class AveragedCentre(Vectors):
    """A centre that each step replaces, and a level that each evaluation moves."""

    own = Averaged.own
    fused = "differs from the same trial alone"  # of a member without an average, whose level an evaluation moves
    production = "buffers that training changes"

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("centre", torch.zeros(8))
                self.register_buffer("level", torch.ones(()))

            def inside(self, x: torch.Tensor) -> torch.Tensor:
                if self.training:
                    self.centre = 0.9 * self.centre + 0.1 * x.detach().mean(0)
                else:
                    self.level.copy_(0.5 * self.level + 0.5 * x.detach().abs().mean())
                return (x - self.centre) * self.level

        return Model()


class MovedByEvaluation(Vectors):
    """A level that each evaluation moves, and that training reads."""

    epochs = 3

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("level", torch.ones(()))

            def inside(self, x: torch.Tensor) -> torch.Tensor:
                if not self.training:
                    self.level.copy_(0.5 * self.level + 0.5 * x.detach().abs().mean())
                return x * self.level

        return Model()
