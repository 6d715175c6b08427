"""Models and losses that change what they are given, or their own weights, in place."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.contracts.zoo.entry import (
    WIDTH,
    Inside,
    Numbers,
    Vectors,
    mlp,
)

IN_PLACE = r"in place|in-place|inplace|changes its input|changes (the )?(inputs|targets|data)|vmap"


class ChangesItsInput(Vectors):
    """The forward pass centres its input in place."""

    fused = IN_PLACE

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                x -= x.mean(1, keepdim=True)
                x *= 1.5
                return super().forward(x)

        return Model()


class ChangesItsInputByNumpy(Vectors):
    """Through NumPy no version counter shows it."""

    fused = rf"{IN_PLACE}|(?i:numpy)|data pointer"

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                x.numpy()[:, 0] *= 1.5
                return super().forward(x)

        return Model()


class ChangesTargetsInLoss(Numbers):
    """The loss scales the targets in place."""

    fused = IN_PLACE

    def model(self, hp: Any) -> nn.Module:
        return nn.Linear(WIDTH, 2)

    def loss(self, outputs: Any, targets: Any) -> Any:
        targets.mul_(1.5)
        return super().loss(outputs, targets)


class ChangesTargetsInMetrics(Numbers):
    fused = IN_PLACE

    def model(self, hp: Any) -> nn.Module:
        return nn.Linear(WIDTH, 2)

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"error": targets.sub_(outputs).abs_().mean()}


class AugmentsInPlace(Vectors):
    fused = IN_PLACE

    def model(self, hp: Any) -> nn.Module:
        return mlp(nn.ReLU())

    def augment(self, inputs: Any, hp: Any) -> Any:
        inputs.mul_(0.5)
        return inputs


class ClampedWeight(Vectors):
    """The forward pass clamps its weight in place, as the critic of a Wasserstein network does."""

    fused = r"in place|in-place|inplace|weight|parameter|clamp_"
    production = r"in place|parameter"

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def inside(self, x: torch.Tensor) -> torch.Tensor:
                with torch.no_grad():
                    self.last.weight.clamp_(-0.1, 0.1)
                return x

        return Model()


class ClampedData(Vectors):
    """The same by `.data`."""

    fused = r"in place|weight|parameter|`\.?data`"
    production = r"in place|parameter"

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def inside(self, x: torch.Tensor) -> torch.Tensor:
                self.last.weight.data.clamp_(-0.1, 0.1)
                return x

        return Model()


class ReplacedWeightData(Vectors):
    """The forward pass normalises its weight by a new tensor in `.data`."""

    fused = r"in place|weight|parameter|`\.?data`"
    production = r"\.data|in place|parameter"

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def inside(self, x: torch.Tensor) -> torch.Tensor:
                weight = self.last.weight.data
                self.last.weight.data = weight / weight.norm()
                return x

        return Model()
