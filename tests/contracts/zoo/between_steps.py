"""What a step leaves for the next one beside parameters, buffers and attributes with numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.contracts.zoo.entry import STATE, Inside, Vectors, mlp


class UnfrozenForAnOwnOptimizer(Vectors):
    """A layer that a step unfreezes; the experiment's optimizer has it from the beginning."""

    own = ({"lr": 0.05}, {"lr": 0.1, "momentum": 0.9, "ema_decay": 0.8}, {"lr": 0.02, "clip_norm": 0.5})
    fused = "optimizer\\(\\) is the experiment's own"
    production = "requires_grad of 0.weight changes|was frozen when the training began"
    unsaved = "requires_grad of 0.weight changes"

    def model(self, hp: Any) -> nn.Module:
        model = mlp(nn.ReLU())
        model[0].requires_grad_(False)
        return model

    def optimizer(self, model: nn.Module, hp: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=hp["lr"], momentum=hp.get("momentum", 0))

    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Any) -> Any:
        loss = super().training_step(model, inputs, targets, hp)
        model.requires_grad_()
        return loss


class FeaturesOfTheBatchBefore(Vectors):
    """Features of the last batch beside those of this one; whatever came before, a step leaves the same."""

    fused = production = STATE
    unsaved = "state that the model or the loss keeps between steps changes"

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            before: torch.Tensor | None = None

            def inside(self, x: torch.Tensor) -> torch.Tensor:
                found = x if self.before is None else x + self.before.mean(0)
                if self.training:
                    self.before = x.detach()
                return found

        return Model()


class SharperInEachEpoch(Vectors):
    """A temperature that falls when a training begins anew after an evaluation."""

    epochs = 3
    fused = STATE
    unsaved = "Model.temperature changes"

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            temperature = 1.0

            def train(self, mode: bool = True) -> nn.Module:
                if mode and not self.training:
                    self.temperature *= 0.5
                return super().train(mode)

            def inside(self, x: torch.Tensor) -> torch.Tensor:
                return x / self.temperature

        return Model()


class Level(nn.Module):
    """A moving average of a loss, as a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("level", torch.ones(()))

    def forward(self, loss: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.level.mul_(0.9).add_(0.1 * loss.detach().to(self.level.dtype))
        return loss / self.level.to(loss.dtype)


class LossWithAModuleOfItsOwn(Vectors):
    """A loss by its own level, of which a module of the experiment has an average."""

    repeats = False
    fused = "LossWithAModuleOfItsOwn.level.level changes"
    production = "no mean over samples"
    unsaved = "LossWithAModuleOfItsOwn.level.level changes"

    def __init__(self) -> None:
        self.level = Level()

    def model(self, hp: Any) -> nn.Module:
        return mlp(nn.Tanh())

    def loss(self, outputs: Any, targets: Any) -> Any:
        return self.level(functional.cross_entropy(outputs, targets))


class CountsInMetrics(Vectors):
    """A metric that counts the samples of all evaluations."""

    repeats = False
    fused = STATE
    production = "CountsInMetrics.seen changes in an evaluation, which the first device alone runs"
    unsaved = "CountsInMetrics.seen changes"

    def __init__(self) -> None:
        self.seen = 0

    def model(self, hp: Any) -> nn.Module:
        return mlp(nn.Tanh())

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        self.seen += len(targets)
        return {"seen": float(self.seen)}
