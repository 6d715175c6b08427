"""A small residual network on the handwritten digits: BatchNorm and skip connections, for arrays of models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
