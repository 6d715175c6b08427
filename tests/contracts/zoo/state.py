"""Models, losses and experiments that keep state in Python."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.contracts.zoo.entry import (
    STATE,
    Inside,
    Vectors,
    mlp,
)


class UnfrozenAtStep20(Vectors):
    """A counter in Python lets a layer learn from its 20th step on."""

    unsaved = "Model.steps changes"
    epochs = 9
    fused = STATE
    production = STATE

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            steps = 0

            def inside(self, x: torch.Tensor) -> torch.Tensor:
                if self.training:
                    self.steps += 1
                return x.detach() if self.steps < 20 else x

        return Model()


class OwnNumpyGenerator(Vectors):
    """Noise from a generator of NumPy that the model holds."""

    unsaved = "Model.generator changes"
    fused = r"generator|random numbers|differs|state|NumPy"
    production = r"generator|random|state|NumPy"

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def __init__(self) -> None:
                super().__init__()
                self.generator = np.random.default_rng(3)

            def inside(self, x: torch.Tensor) -> torch.Tensor:
                return x + float(self.generator.normal()) if self.training else x

        return Model()


class OwnTorchGenerator(Vectors):
    """Noise from a generator of torch that the model holds."""

    unsaved = "Model.generator changes"
    fused = r"generator|random numbers|differs|state"
    production = r"generator|random|state"

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def __init__(self) -> None:
                super().__init__()
                self.generator = torch.Generator().manual_seed(3)

            def inside(self, x: torch.Tensor) -> torch.Tensor:
                return x + torch.randn((), generator=self.generator, dtype=x.dtype) if self.training else x

        return Model()


class PythonsRandomLater(Vectors):
    """Draws from Python's random numbers from the 5th step on."""

    unsaved = "Model.steps changes"
    epochs = 3
    fused = rf"random|{STATE}"
    production = rf"random|{STATE}"

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            steps = 0

            def inside(self, x: torch.Tensor) -> torch.Tensor:
                self.steps += self.training
                return x * (1 + random.random()) if self.training and self.steps > 4 else x

        return Model()


CALLS = [0]


class GlobalCounter(Vectors):
    """The number of calls so far, of all models of this process, decides the output."""

    unsaved = "the global CALLS changes"
    fused = rf"{STATE}|vmap does not follow"
    production = rf"{STATE}|global"
    repeats = False

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def inside(self, x: torch.Tensor) -> torch.Tensor:
                CALLS[0] += 1
                return x / (1 + 0.01 * CALLS[0])

        return Model()


class CachedTensor(Vectors):
    """Keeps a tensor of its first batch, as caches of positions and masks do."""

    unsaved = "Model.kept changes"
    fused = rf"{STATE}|cache|escaped|already been freed|does not read"
    production = rf"{STATE}|cache"

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            kept: torch.Tensor | None = None

            def inside(self, x: torch.Tensor) -> torch.Tensor:
                if self.kept is None:
                    self.kept = x.detach().mean(0)
                return x - self.kept

        return Model()


class CachedConstant(Vectors):
    """Keeps a tensor that depends on nothing but a shape: a cache that changes no number."""

    fused = rf"{STATE}|cache"

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            positions: torch.Tensor | None = None

            def inside(self, x: torch.Tensor) -> torch.Tensor:
                if self.positions is None:
                    self.positions = torch.arange(x.shape[-1], dtype=x.dtype, device=x.device)
                return x + 0.1 * self.positions

        return Model()


class PlainMovingAverage(Vectors):
    """A moving average of activations in a plain attribute."""

    unsaved = "Model.average changes"
    fused = rf"{STATE}|escaped|attribute"
    production = rf"{STATE}|attribute"

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            average: Any = 0.0

            def inside(self, x: torch.Tensor) -> torch.Tensor:
                if self.training:
                    self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
                return x - self.average

        return Model()


class MovingAverageOfNumbers(Vectors):
    """The same as a Python number, by `.item()`."""

    unsaved = "Model.average changes"
    fused = rf"item|a number|{STATE}"
    production = rf"{STATE}|attribute"

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            average = 0.0

            def inside(self, x: torch.Tensor) -> torch.Tensor:
                if self.training:
                    self.average = 0.9 * self.average + 0.1 * x.mean().item()
                return x - self.average

        return Model()


class SharedModule(Vectors):
    """A module that was made with the experiment, and is part of every trial's model; trials of one experiment that
    have no copy of it are refused."""

    again = r"returned the parameter 2\.weight again, which an earlier model has"

    def __init__(self) -> None:
        torch.manual_seed(5)
        self.shared = nn.Linear(8, 8)

    def model(self, hp: Any) -> nn.Module:
        return mlp(nn.ReLU(), self.shared)


class SharedFrozenModule(Vectors):
    """The same, where it is not trained: a backbone loaded once."""

    fused = r"shared|share"

    def __init__(self) -> None:
        torch.manual_seed(5)
        self.backbone = nn.Linear(8, 8).requires_grad_(False)

    def model(self, hp: Any) -> nn.Module:
        return mlp(nn.ReLU(), self.backbone)


class LossWithRunningMean(Vectors):
    """The experiment's loss divides by a running mean that it keeps."""

    unsaved = "LossWithRunningMean.mean changes"
    fused = rf"loss|{STATE}|escaped|self"
    production = rf"loss|{STATE}"
    repeats = False

    def __init__(self) -> None:
        self.mean: Any = 1.0

    def model(self, hp: Any) -> nn.Module:
        return mlp(nn.ReLU())

    def loss(self, outputs: Any, targets: Any) -> Any:
        loss = super().loss(outputs, targets)
        self.mean = 0.9 * self.mean + 0.1 * loss.detach()
        return loss / self.mean


class AnnealedLoss(Vectors):
    """The experiment's loss counts its calls, and weighs a term by them."""

    unsaved = "AnnealedLoss.calls changes"
    fused = rf"loss|{STATE}|self"
    production = rf"loss|{STATE}"
    repeats = False

    def __init__(self) -> None:
        self.calls = 0

    def model(self, hp: Any) -> nn.Module:
        return mlp(nn.ReLU())

    def loss(self, outputs: Any, targets: Any) -> Any:
        self.calls += 1
        return super().loss(outputs, targets) + min(1.0, self.calls / 50) * outputs.square().mean()


class AnnealedInModel(Vectors):
    """The model counts its steps in a Python number, which scales its output: made anew with each model."""

    unsaved = "Model.steps changes"
    fused = STATE
    production = STATE

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            steps = 0

            def inside(self, x: torch.Tensor) -> torch.Tensor:
                self.steps += self.training
                return x * min(1.0, 0.1 * self.steps)

        return Model()


class StateInAList(Vectors):
    """The counter lies in a list, which is the same object before and after."""

    unsaved = "Model.seen changes"
    fused = STATE
    production = STATE

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def __init__(self) -> None:
                super().__init__()
                self.seen: list[int] = []

            def inside(self, x: torch.Tensor) -> torch.Tensor:
                if self.training:
                    self.seen.append(len(x))
                return x / (1 + 0.1 * len(self.seen))

        return Model()


class StateInAClosure(Vectors):
    """The counter lies in a closure, out of any attribute's reach: no more is known than that the results differ."""

    unsaved = "the variable steps changes"
    fused = rf"{STATE}|vmap does not follow"
    production = STATE

    def model(self, hp: Any) -> nn.Module:
        steps = 0

        class Model(Inside):
            def inside(self, x: torch.Tensor) -> torch.Tensor:
                nonlocal steps
                steps += self.training
                return x * min(1.0, 0.1 * steps)

        return Model()
