"""Losses of single samples and of batches: plain means, sums, and what is neither."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from raygpu import Sum
from tests.contracts.zoo.entry import (
    CLASSES,
    WIDTH,
    Vectors,
    mlp,
    normal,
)

NO_MEAN = r"no mean over samples|depend on the rest of its batch"
"""How raygpu says that a batch's loss is not what its parts' losses tell."""


class Perceptron(Vectors, base=True):
    def model(self, hp: Any) -> nn.Module:
        return mlp(nn.Tanh())


class MultiLabel(Perceptron, base=True):
    """Each sample has some of the classes."""

    def part(self, generator: np.random.Generator, count: int) -> tuple[Any, Any]:
        return normal(generator, count, WIDTH), (normal(generator, count, CLASSES) > 0.3).astype(np.float32)

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"hits": ((outputs > 0) == (targets > 0.5)).double().mean()}


class BinaryCrossEntropy(MultiLabel):
    def loss(self, outputs: Any, targets: Any) -> Any:
        return functional.binary_cross_entropy_with_logits(outputs, targets, pos_weight=outputs.new_tensor(2.0))


class Focal(MultiLabel):
    def loss(self, outputs: Any, targets: Any) -> Any:
        single = functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
        return ((1 - torch.exp(-single)).square() * single).mean()


class Dice(MultiLabel):
    """The overlap of the whole batch: parts of it have other ones."""

    production = NO_MEAN

    def loss(self, outputs: Any, targets: Any) -> Any:
        found = outputs.sigmoid()
        return 1 - 2 * (found * targets).sum() / (found.sum() + targets.sum())


class DiceOfEachSample(MultiLabel):
    def loss(self, outputs: Any, targets: Any) -> Any:
        found = outputs.sigmoid()
        return (1 - 2 * (found * targets).sum(1) / (found.sum(1) + targets.sum(1) + 1)).mean()


class Regression(Perceptron, base=True):
    def part(self, generator: np.random.Generator, count: int) -> tuple[Any, Any]:
        return normal(generator, count, WIDTH), normal(generator, count, CLASSES)

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"error": (outputs - targets).abs().mean()}


class Huber(Regression):
    def loss(self, outputs: Any, targets: Any) -> Any:
        return functional.huber_loss(outputs, targets, delta=0.5) + functional.smooth_l1_loss(outputs, targets)


class PoissonAndGaussian(Regression):
    """Its function checks by an `if` that no variance is below 0."""

    fused = r"data-dependent"

    def loss(self, outputs: Any, targets: Any) -> Any:
        spread = functional.softplus(outputs) + 0.1
        likely = functional.gaussian_nll_loss(outputs, targets, spread)
        return likely + functional.poisson_nll_loss(outputs, targets.abs())


class RootMeanSquare(Regression):
    """The root of the batch's mean: parts have other ones."""

    production = NO_MEAN

    def loss(self, outputs: Any, targets: Any) -> Any:
        return functional.mse_loss(outputs, targets).sqrt()


class SumOfSquares(Regression):
    """A sum over samples that does not say so."""

    production = NO_MEAN

    def loss(self, outputs: Any, targets: Any) -> Any:
        return 0.05 * functional.mse_loss(outputs, targets, reduction="sum")


class SumOfSquaresAsSum(Regression):
    compiled = True

    def loss(self, outputs: Any, targets: Any) -> Any:
        return Sum(0.05 * functional.mse_loss(outputs, targets, reduction="sum"))

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"far": Sum(((outputs - targets).abs() > 1).double().sum())}


class LabelSmoothing(Perceptron):
    def loss(self, outputs: Any, targets: Any) -> Any:
        return functional.cross_entropy(outputs, targets, label_smoothing=0.1)


class MarginLoss(Perceptron):
    fused = r"aten::multi_margin_loss\w* (runs as a slow loop|has no rule)"

    def loss(self, outputs: Any, targets: Any) -> Any:
        return functional.multi_margin_loss(outputs, targets)


class Distribution(Regression):
    """The divergence from a distribution over the classes."""

    fused = r"aten::kl_div (runs as a slow loop|has no rule)"

    def loss(self, outputs: Any, targets: Any) -> Any:
        return functional.kl_div(outputs.log_softmax(1), targets.softmax(1), reduction="batchmean")
