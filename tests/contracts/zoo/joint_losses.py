"""Losses on pairs, on whole batches, on several targets, and those that reach the model."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tests.contracts.zoo.entry import (
    CLASSES,
    LENGTH,
    WIDTH,
    Entry,
    Vectors,
    normal,
)
from tests.contracts.zoo.losses import NO_MEAN, Perceptron


class TwoViews(Entry, base=True):
    """Named inputs: two vectors that belong together."""

    def part(self, generator: np.random.Generator, count: int) -> tuple[Any, Any]:
        views = {"left": normal(generator, count, WIDTH), "right": normal(generator, count, WIDTH)}
        return views, generator.integers(0, 2, count)


class Siamese(TwoViews):
    """One network for both; the loss is one of each pair."""

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net = nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, 4))

            def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
                return (self.net(left) - self.net(right)).norm(dim=1)

        return Model()

    def loss(self, outputs: Any, targets: Any) -> Any:
        same = targets.to(outputs.dtype)
        return (same * outputs.square() + (1 - same) * torch.relu(1 - outputs).square()).mean()

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"accuracy": ((outputs < 0.5) == (targets == 1)).double().mean()}


class RankingOfPairs(Siamese):
    """Which of both is ranked higher."""

    fused = r"aten::margin_ranking_loss (runs as a slow loop|has no rule)"

    def loss(self, outputs: Any, targets: Any) -> Any:
        return functional.margin_ranking_loss(outputs, torch.ones_like(outputs), 2 * targets - 1, margin=0.5)


class Ctc(Vectors):
    """The transcription of a series, by connectionist temporal classification."""

    fused = r"aten::\w*ctc_loss\w* (runs as a slow loop|has no rule)|ctc|a number|item"

    def part(self, generator: np.random.Generator, count: int) -> tuple[Any, Any]:
        lengths = generator.integers(1, 4, count)
        return normal(generator, count, LENGTH, 6), {"text": generator.integers(1, 5, (count, 3)), "lengths": lengths}

    def model(self, hp: Any) -> nn.Module:
        return nn.Linear(6, 5)

    def loss(self, outputs: Any, targets: Any) -> Any:
        logs = outputs.log_softmax(2).transpose(0, 1)
        steps = torch.full((len(outputs),), LENGTH, device=outputs.device)
        return functional.ctc_loss(logs, targets["text"], steps, targets["lengths"])

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"blanks": (outputs.argmax(2) == 0).double().mean()}


class TwoTasks(Vectors):
    """Named targets: a class and a number, whose losses have learned weights."""

    def part(self, generator: np.random.Generator, count: int) -> tuple[Any, Any]:
        inputs, targets = super().part(generator, count)
        return inputs, {"kind": targets, "price": normal(generator, count)}

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.body, self.kind, self.price = nn.Linear(WIDTH, 8), nn.Linear(8, CLASSES), nn.Linear(8, 1)
                self.spread = nn.Parameter(torch.zeros(2))

            def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
                hidden = torch.relu(self.body(x))
                return {"kind": self.kind(hidden), "price": self.price(hidden)[:, 0], "spread": self.spread}

        return Model()

    def loss(self, outputs: Any, targets: Any) -> Any:
        kind = functional.cross_entropy(outputs["kind"], targets["kind"])
        price = functional.l1_loss(outputs["price"], targets["price"])
        first, second = outputs["spread"]
        return kind * torch.exp(-first) + price * torch.exp(-second) + first + second

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"accuracy": (outputs["kind"].argmax(1) == targets["kind"]).double().mean()}


class PenaltyInForward(Perceptron):
    """A penalty on the weights, which the model gives beside its outputs."""

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.last = nn.Linear(WIDTH, CLASSES)

            def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                return self.last(x), self.last.weight.square().sum()

        return Model()

    def loss(self, outputs: Any, targets: Any) -> Any:
        return functional.cross_entropy(outputs[0], targets) + 0.01 * outputs[1]

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return super().metrics(outputs[0], targets)


class PenaltyThroughSelf(Perceptron):
    """The loss reaches the model through the experiment: an array has many, and the last one made is none of them."""

    fused = r"self|loss|does not depend|without a gradient|differs"

    def model(self, hp: Any) -> nn.Module:
        self.latest = super().model(hp)
        return self.latest

    def loss(self, outputs: Any, targets: Any) -> Any:
        penalty = sum(p.square().sum() for p in self.latest.parameters())
        return super().loss(outputs, targets) + 0.05 * penalty


class Distillation(Perceptron):
    """A teacher that the experiment holds; its outputs are a target."""

    fused = r"self|teacher|dtype"

    def __init__(self) -> None:
        torch.manual_seed(4)
        self.teacher = nn.Linear(WIDTH, CLASSES).requires_grad_(False)

    def model(self, hp: Any) -> nn.Module:
        student, teacher = super().model(hp), self.teacher

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.student = student

            def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                wanted = functional.linear(x, teacher.weight.to(x), teacher.bias.to(x))
                return self.student(x), wanted

        return Model()

    def loss(self, outputs: Any, targets: Any) -> Any:
        return super().loss(outputs[0], targets) + functional.mse_loss(*outputs)

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return super().metrics(outputs[0], targets)


class Contrastive(Perceptron):
    """Each sample against all others of its batch: there is no sum over parts."""

    production = NO_MEAN

    def loss(self, outputs: Any, targets: Any) -> Any:
        found = functional.normalize(outputs, dim=1)
        return functional.cross_entropy(found @ found.flip(1).T / 0.3, torch.arange(len(found), device=found.device))

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {}


class PairwiseRanking(Perceptron):
    """All pairs of a batch."""

    production = NO_MEAN

    def loss(self, outputs: Any, targets: Any) -> Any:
        score = outputs[:, 0]
        order = (targets[:, None] > targets[None]).to(score.dtype)
        return (order * functional.softplus(score[None] - score[:, None])).mean()


class Decorrelated(Perceptron):
    """A loss on the batch's covariance, as in Barlow twins."""

    production = NO_MEAN

    def loss(self, outputs: Any, targets: Any) -> Any:
        centred = outputs - outputs.mean(0)
        return (
            (centred.T @ centred / len(outputs) - torch.eye(CLASSES, dtype=outputs.dtype, device=outputs.device))
            .square()
            .mean()
        )
