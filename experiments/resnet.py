"""Residual networks, BatchNorm and skip connections, for arrays of models: a small one, and ResNet-18."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.digits import digits
from raygpu import Splits, TorchExperiment

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import nn


class SmallResNet(TorchExperiment):
    """A convolution to `channels` maps, two residual blocks, global pooling and a linear layer."""

    def data(self) -> Splits:
        return digits()

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        from torch import nn

        class Block(nn.Module):
            """x + f(x), f of two convolutions with BatchNorm."""

            def __init__(self, channels: int) -> None:
                super().__init__()
                self.inner = nn.Sequential(
                    nn.Conv2d(channels, channels, 3, padding=1, bias=False),
                    nn.BatchNorm2d(channels),
                    nn.ReLU(),
                    nn.Conv2d(channels, channels, 3, padding=1, bias=False),
                    nn.BatchNorm2d(channels),
                )
                self.activation = nn.ReLU()

            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                return self.activation(inputs + self.inner(inputs))

        channels = hp["channels"]
        return nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            Block(channels),
            Block(channels),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(channels, 10),
        )


class ResNet18(TorchExperiment):
    """ResNet-18 as it is used on CIFAR-10, on synthetic images of that shape: seeded noise and labels, to be timed.

    A stem of 3 x 3, four stages of two blocks each, of `channels` maps (ResNet-18's own: 64), then 2, 4 and 8 times
    as many.
    """

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
        from torch import nn

        class Block(nn.Module):
            """shortcut(x) + f(x); the shortcut is a convolution of 1 x 1 where the shape changes."""

            def __init__(self, before: int, after: int, stride: int) -> None:
                super().__init__()
                self.inner = nn.Sequential(
                    nn.Conv2d(before, after, 3, stride, padding=1, bias=False),
                    nn.BatchNorm2d(after),
                    nn.ReLU(),
                    nn.Conv2d(after, after, 3, padding=1, bias=False),
                    nn.BatchNorm2d(after),
                )
                self.shortcut = (
                    nn.Identity()
                    if before == after and stride == 1
                    else nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
                )
                self.activation = nn.ReLU()

            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                return self.activation(self.shortcut(inputs) + self.inner(inputs))

        first = hp["channels"]
        layers: list[nn.Module] = [nn.Conv2d(3, first, 3, padding=1, bias=False), nn.BatchNorm2d(first), nn.ReLU()]
        before = first
        for stage in range(4):
            after = first * 2**stage
            layers += [Block(before, after, 1 if stage == 0 else 2), Block(after, after, 1)]
            before = after
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))
