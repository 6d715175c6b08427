"""Small torch experiments on a part of scikit-learn's digits: what arrays and trainings alone are compared on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from experiments.digits import Cnn as DigitsCnn
from experiments.digits import Mlp as DigitsMlp
from raygpu import Splits, TorchExperiment
from raygpu.experiment import Experiment
from tests.small_data import NUM_TRAIN as NUM_TRAIN
from tests.small_data import few as few


class Mlp(DigitsMlp):
    def data(self) -> Splits:
        return few()


class SmoothedMlp(Mlp):
    """Its training loss has label smoothing, a hyper-parameter; its validation loss has none."""

    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> Any:
        return nn.functional.cross_entropy(model(inputs), targets, label_smoothing=hp.get("smoothing", 0.1))


class Cnn(DigitsCnn):
    def data(self) -> Splits:
        return few()


class Text(TorchExperiment):
    """Each image's pixels as 64 tokens of a vocabulary of 17: embedding, convolution, pooling."""

    def data(self) -> Splits:
        def tokens(pixels: Any) -> np.ndarray:
            return np.rint(pixels * 16).astype(np.int64)

        part = few()
        return Splits(
            tokens(part.train_inputs), part.train_targets, tokens(part.validation_inputs), part.validation_targets
        )

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return TextModel(hp["features"])


class TextModel(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(17, 8)
        self.convolution = nn.Conv1d(8, features, 5, padding=2)
        self.last = nn.Linear(8 * features, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        maps = torch.relu(self.convolution(self.embedding(tokens).transpose(1, 2)))
        return self.last(nn.functional.avg_pool1d(maps, 8).flatten(1))


class SmallResNet(TorchExperiment):
    """A stem and two residual blocks, the second of half the size and twice the channels."""

    def data(self) -> Splits:
        return few()

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        channels = hp["channels"]
        return nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            Block(channels, channels, 1),
            Block(channels, 2 * channels, 2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(2 * channels, 10),
        )


class Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inside = self.norm2(self.second(torch.relu(self.norm1(self.first(x)))))
        return torch.relu(inside + self.shortcut(x))


MODELS: dict[str, tuple[type[Experiment], dict[str, Any]]] = {
    "mlp": (Mlp, {"hidden": 16}),
    "cnn": (Cnn, {"blocks": 2, "channels": 4, "channels2": 8}),
    "text": (Text, {"features": 8}),
    "resnet": (SmallResNet, {"channels": 4}),
}
"""By name: the experiment, and the hyper-parameters that shape its model."""
