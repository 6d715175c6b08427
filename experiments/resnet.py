"""Residual networks to be timed in arrays of models: a small one on the digits, and ResNet-18 on synthetic images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.digits import Digits
from raygpu import Splits, TorchExperiment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn


class SmallResNet(Digits, TorchExperiment):
    """A convolution to `channels` maps, two residual blocks, global pooling and a linear layer."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        from torch import nn

        from experiments.torch_networks import BasicBlock, convolution

        channels = hp["channels"]
        return nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            *convolution(1, channels, 3),
            nn.ReLU(),
            BasicBlock(channels, channels),
            BasicBlock(channels, channels),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(channels, 10),
        )


class ResNet18(TorchExperiment):
    """The network of `experiments.cifar:ResNet18` on a few synthetic images of that shape, in floating point and never
    augmented: seeded noise and labels, so that nothing but the network is timed."""

    num_train = 256
    num_validation = 64

    def data(self) -> Splits:
        rng = np.random.default_rng(0)
        count = self.num_train + self.num_validation
        inputs = rng.standard_normal((count, 3, 32, 32), dtype=np.float32)
        targets = rng.integers(0, 10, count)
        n = self.num_train
        return Splits(inputs[:n], targets[:n], inputs[n:], targets[n:])

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        from experiments.torch_networks import BasicBlock, resnet

        return resnet(BasicBlock, (2, 2, 2, 2), hp["channels"])
