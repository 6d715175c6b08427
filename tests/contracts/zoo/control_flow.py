"""Tensors that decide what Python does, by an `if`, a number or a mask."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tests.contracts.zoo.entry import (
    CLASSES,
    WIDTH,
    Inside,
    Vectors,
)


class CaughtIf(Vectors):
    """Its `if` on a tensor is within a `try`, which hides what vmap raises."""

    fused = r"data-dependent|differs|a number|RuntimeError|catches|\bif\b|while training"

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def inside(self, x: torch.Tensor) -> torch.Tensor:
                try:
                    return 2 * x if self.last.bias.sum() > 0 else x
                except RuntimeError:
                    return x

        return Model()


class CaughtByMetrics(Vectors):
    """Metrics have values of their own for errors, as of a score that one class alone does not have."""

    def model(self, hp: Any) -> nn.Module:
        return Inside()

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        try:
            largest = float(outputs.detach().cpu().numpy().max(1).mean())
        except (RuntimeError, ValueError):
            largest = 0.5
        return {"largest": largest}


class CaughtByLoss(Vectors):
    """A loss of evaluations alone that hides what vmap raises."""

    fused = r"data-dependent control flow.*in CaughtByLoss.loss .*goes on after the error"

    def model(self, hp: Any) -> nn.Module:
        return Inside()

    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Any) -> Any:
        return functional.cross_entropy(model(inputs), targets)

    def loss(self, outputs: Any, targets: Any) -> Any:
        loss = functional.cross_entropy(outputs, targets)
        try:
            return loss if loss < 100 else loss.new_full((), 100)
        except RuntimeError:
            return loss


class RareIf(Vectors):
    """As the one above, where few steps show it: the weights have to move first."""

    epochs = 9
    fused = r"data-dependent|differs|a number|RuntimeError|catches|\bif\b|audit|alone"

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def __init__(self) -> None:
                super().__init__()
                self.scale = nn.Parameter(torch.ones(()))

            def inside(self, x: torch.Tensor) -> torch.Tensor:
                try:
                    x = 3 * x if (self.scale - 1).abs() > 0.02 else x
                except RuntimeError:
                    pass
                return self.scale * x

        return Model()


class DataDependentIf(Vectors):
    """Each batch decides for itself, and so does each part of it."""

    fused = r"data-dependent"
    production = r"depend on the rest of its batch"

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def inside(self, x: torch.Tensor) -> torch.Tensor:
                return x if x.mean() > 0.25 else -x

        return Model()


class Item(Vectors):
    """Scales by the batch's own mean: a batch's parts have others."""

    fused = r"item|a number"
    production = r"depend on the rest of its batch"

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def inside(self, x: torch.Tensor) -> torch.Tensor:
                return x * x.mean().item()

        return Model()


class BooleanMask(Vectors):
    """Takes the chosen elements out by a mask, and puts them back."""

    fused = r"mask|dynamic|nonzero|data-dependent|index"

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def inside(self, x: torch.Tensor) -> torch.Tensor:
                out = torch.zeros_like(x)
                out[x > 0.1] = 2 * x[x > 0.1]
                return out

        return Model()


class MaskedSelectWithinWhere(Vectors):
    """The form of the same that vmap knows."""

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def inside(self, x: torch.Tensor) -> torch.Tensor:
                return torch.where(x > 0.1, 2 * x, 0.0)

        return Model()


class ThroughNumpy(Vectors):
    """A constant of the batch is computed by NumPy."""

    fused = r"(?i:numpy)|a number"
    production = r"depend on the rest of its batch"

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def inside(self, x: torch.Tensor) -> torch.Tensor:
                return x / float(np.percentile(x.detach().numpy(), 90))

        return Model()


class UnseenBranch(Vectors):
    """A second head that only samples of a rare kind use: none of the first ones, and not all batches."""

    production = r"not the mean|mean over|parts|branch|Expected to have finished|without a gradient"
    fused = r"data-dependent"

    def part(self, generator: np.random.Generator, count: int) -> tuple[Any, Any]:
        inputs, targets = super().part(generator, count)
        inputs[:, 0] = 0.0
        inputs[-3:, 0] = 5.0
        return inputs, targets

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def __init__(self) -> None:
                super().__init__()
                self.rare = nn.Linear(8, CLASSES)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                hidden = torch.relu(self.first(x))
                rare = x[:, 0] > 4
                outputs = self.last(hidden)
                if rare.any():
                    outputs = outputs + torch.where(rare[:, None], self.rare(hidden), 0.0)
                return outputs

        return Model()


class DeepcopyInForward(Vectors):
    """Runs a copy of a part of itself."""

    fused = r"copy|differs|unwrap|BatchedTensor|data-dependent|vmap|deepcopy"

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def inside(self, x: torch.Tensor) -> torch.Tensor:
                with torch.no_grad():
                    teacher = copy.deepcopy(self.first)(torch.ones(1, WIDTH, dtype=x.dtype, device=x.device))
                return x + teacher

        return Model()
