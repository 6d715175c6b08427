"""Models that read hyper-parameters where a look at one forward pass does not see it."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from tests.contracts.zoo.entry import (
    STATE,
    Inside,
    Vectors,
    mlp,
)

SIGNATURE = r"signature of its own|\bscale\b|not come from reading hp|differs between trials"


SCALES: Any = tuple({"lr": 0.05, "scale": scale} for scale in (0.5, 1.0, 2.0))


class Scaled(Vectors, base=True):
    """The members differ in `scale`."""

    own: ClassVar[Any] = SCALES


class ScaleOfLargeBatches(Scaled):
    """A hyper-parameter that is read for batches of more than 8 samples only."""

    fused = SIGNATURE
    production = r"size of|batch|not the mean|parts"

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def inside(self, x: torch.Tensor) -> torch.Tensor:
                return x * self.hp["scale"] if len(x) > 8 else x

        return Model(hp)


class ScaleInEvaluation(Scaled):
    fused = SIGNATURE

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def inside(self, x: torch.Tensor) -> torch.Tensor:
                return x if self.training else x * self.hp["scale"]

        return Model(hp)


class ScaleInLaterSteps(Scaled):
    """A hyper-parameter that is read from the 5th step on."""

    unsaved = "Model.steps changes"
    epochs = 3
    fused = f"{SIGNATURE}|{STATE}"
    production = STATE

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            steps = 0

            def inside(self, x: torch.Tensor) -> torch.Tensor:
                self.steps += self.training
                return x if self.steps < 5 else x * self.hp["scale"]

        return Model(hp)


class ScaleInLaterStepsCountedInABuffer(Scaled):
    """As the one above, where the counter is a buffer and decides by its value."""

    epochs = 3
    fused = rf"{SIGNATURE}|data-dependent"
    production = r"buffer|steps|state"

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def __init__(self, hp: Any) -> None:
                super().__init__(hp)
                self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

            def inside(self, x: torch.Tensor) -> torch.Tensor:
                if self.training:
                    self.steps += 1
                return x if self.steps < 5 else x * self.hp["scale"]

        return Model(hp)


class ScalePastTheRecord(Scaled):
    """Reads the hyper-parameters in a way that nobody sees."""

    fused = SIGNATURE

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def inside(self, x: torch.Tensor) -> torch.Tensor:
                return x * float(repr(self.hp).split("'scale': ")[1].strip("})"))

        return Model(hp)


class ScaleInLoss(Scaled):
    """The loss reads what `model` has kept of the hyper-parameters."""

    fused = rf"{SIGNATURE}|loss|self"

    def model(self, hp: Any) -> nn.Module:
        self.scale = hp.get("scale")
        return mlp(nn.Tanh())

    def loss(self, outputs: Any, targets: Any) -> Any:
        return super().loss(self.scale * outputs, targets)


class ScaleReadByTheLoss(Scaled):
    """The experiment keeps `hp` itself, and its loss reads it later on."""

    fused = rf"{SIGNATURE}|loss|self"

    def model(self, hp: Any) -> nn.Module:
        self.hp = hp
        return mlp(nn.Tanh())

    def loss(self, outputs: Any, targets: Any) -> Any:
        return super().loss(self.hp["scale"] * outputs, targets)


class TrainingBranch(Vectors):
    compiled = True

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def inside(self, x: torch.Tensor) -> torch.Tensor:
                return 0.5 * x if self.training else x.clamp(max=1.0)

        return Model()
