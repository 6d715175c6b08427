"""Losses in which samples do not count alike: masks, ignored targets, class weights; as `Mean` they are exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from raygpu import Mean
from tests.contracts.zoo.entry import (
    CLASSES,
    LENGTH,
    VOCABULARY,
    Images,
    Texts,
    normal,
)
from tests.contracts.zoo.losses import NO_MEAN, Perceptron

IGNORED = -100


class SomeIgnored(Perceptron, base=True):
    """Two samples in three have no class."""

    def part(self, generator: np.random.Generator, count: int) -> tuple[Any, Any]:
        inputs, targets = super().part(generator, count)
        targets[generator.random(count) < 0.66] = IGNORED
        return inputs, targets

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        valid = targets != IGNORED
        return {"accuracy": Mean(((outputs.argmax(1) == targets) & valid).sum(), valid.sum())}


class IgnoreIndex(SomeIgnored):
    production = NO_MEAN

    def loss(self, outputs: Any, targets: Any) -> Any:
        return functional.cross_entropy(outputs, targets, ignore_index=IGNORED)


class IgnoreIndexAsMean(SomeIgnored):
    """Also where a part has no valid target."""

    compiled = True

    def loss(self, outputs: Any, targets: Any) -> Any:
        losses = functional.cross_entropy(outputs, targets, ignore_index=IGNORED, reduction="sum")
        return Mean(losses, (targets != IGNORED).sum())


class Gated(nn.Module):
    """A language model of one gated layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.last = nn.Embedding(VOCABULARY, 6), nn.Linear(6, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.embedding(x)).cumsum(1) / 3)


class MaskedTexts(Texts, base=True):
    """Texts of different lengths."""

    def model(self, hp: Any) -> nn.Module:
        return Gated()

    def part(self, generator: np.random.Generator, count: int) -> tuple[Any, Any]:
        inputs, targets = super().part(generator, count)
        lengths = generator.integers(1, LENGTH + 1, count)
        targets[np.arange(LENGTH)[None] >= lengths[:, None]] = IGNORED
        return inputs, targets

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        valid = targets != IGNORED
        return {"accuracy": Mean(((outputs.argmax(-1) == targets) & valid).sum(), valid.sum())}


class MaskedSequenceLoss(MaskedTexts):
    production = NO_MEAN


class MaskedSequenceLossAsMean(MaskedTexts):
    def loss(self, outputs: Any, targets: Any) -> Any:
        single = functional.cross_entropy(outputs.transpose(1, 2), targets, reduction="none")
        valid = targets != IGNORED
        return Mean(torch.where(valid, single, 0.0).sum(), valid.sum())


class BooleanMaskedLoss(MaskedTexts):
    """The masked positions are taken out by a boolean index."""

    fused = r"mask|dynamic|nonzero|data-dependent|index"
    production = NO_MEAN

    def loss(self, outputs: Any, targets: Any) -> Any:
        valid = targets != IGNORED
        return functional.cross_entropy(outputs[valid], targets[valid])


class SegmentationWithVoid(Images):
    """A class for each pixel, and some without one."""

    def part(self, generator: np.random.Generator, count: int) -> tuple[Any, Any]:
        targets = generator.integers(0, CLASSES, (count, 8, 8))
        targets[generator.random(targets.shape) < 0.3] = 255
        return normal(generator, count, 3, 8, 8), targets

    def model(self, hp: Any) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, CLASSES, 1))

    def loss(self, outputs: Any, targets: Any) -> Any:
        losses = functional.cross_entropy(outputs, targets, ignore_index=255, reduction="sum")
        return Mean(losses, (targets != 255).sum())

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"accuracy": Mean((outputs.argmax(1) == targets).sum(), (targets != 255).sum())}


class ClassWeights(Perceptron):
    """Divided by the weights of the batch's classes, which parts have others of."""

    production = NO_MEAN

    def loss(self, outputs: Any, targets: Any) -> Any:
        return functional.cross_entropy(outputs, targets, weight=outputs.new_tensor([0.2, 1.0, 3.0, 0.5]))


class ClassWeightsAsMean(Perceptron):
    def loss(self, outputs: Any, targets: Any) -> Any:
        weight = outputs.new_tensor([0.2, 1.0, 3.0, 0.5])
        return Mean(functional.cross_entropy(outputs, targets, weight=weight, reduction="sum"), weight[targets].sum())
