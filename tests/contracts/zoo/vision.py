"""Architectures for images at toy size, written out: torchvision and timm need builds for the torch at hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tests.contracts.zoo.entry import (
    CLASSES,
    Images,
    classes,
    normal,
)
from tests.contracts.zoo.layers import PARTS


class Residual(nn.Module):
    """A module's output beside its input."""

    def __init__(self, *inside: nn.Module, short: nn.Module | None = None) -> None:
        super().__init__()
        self.inside, self.short = nn.Sequential(*inside), short or nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.short(x) + self.inside(x)


def pooled(*layers: nn.Module, features: int) -> nn.Sequential:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, CLASSES))


def convolution(before: int, after: int, size: int = 3, **options: Any) -> list[nn.Module]:
    padding = size // 2
    return [nn.Conv2d(before, after, size, padding=padding, bias=False, **options), nn.BatchNorm2d(after)]


class ResNet(Images):
    production = PARTS
    compiled = True

    def model(self, hp: Any) -> nn.Module:
        first = Residual(*convolution(4, 4), nn.ReLU(), *convolution(4, 4))
        short = nn.Sequential(*convolution(4, 6, 1, stride=2))
        second = Residual(*convolution(4, 6, stride=2), nn.ReLU(), *convolution(6, 6), short=short)
        return pooled(*convolution(3, 4), nn.ReLU(), first, nn.ReLU(), second, nn.ReLU(), features=6)


class SqueezeExcite(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(features, 2, 1), nn.SiLU(), nn.Conv2d(2, features, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gate(x).sigmoid()


class MobileNet(Images):
    """An inverted residual block with a depthwise convolution and a gate, as in EfficientNet."""

    production = PARTS

    def model(self, hp: Any) -> nn.Module:
        depthwise = [*convolution(8, 8, groups=8), nn.Hardswish(), SqueezeExcite(8)]
        block = Residual(*convolution(4, 8, 1), nn.Hardswish(), *depthwise, *convolution(8, 4, 1))
        return pooled(*convolution(3, 4, stride=2), nn.ReLU6(), block, features=4)


class DenseNet(Images):
    production = PARTS

    def model(self, hp: Any) -> nn.Module:
        class Dense(nn.Module):
            def __init__(self, before: int) -> None:
                super().__init__()
                self.inside = nn.Sequential(nn.BatchNorm2d(before), nn.ReLU(), nn.Conv2d(before, 3, 3, padding=1))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return torch.cat([x, self.inside(x)], dim=1)

        return pooled(nn.Conv2d(3, 4, 3), Dense(4), Dense(7), nn.AvgPool2d(2), Dense(10), features=13)


class UNet(Images):
    """Segmentation: a class for each pixel."""

    def part(self, generator: np.random.Generator, count: int) -> tuple[Any, Any]:
        return normal(generator, count, 3, 8, 8), classes(generator, count, 8, 8)

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.down, self.middle = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 6, 3, padding=1)
                self.up, self.last = nn.ConvTranspose2d(6, 4, 2, stride=2), nn.Conv2d(8, CLASSES, 1)
                self.norm = nn.GroupNorm(2, 6)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                fine = torch.relu(self.down(x))
                coarse = torch.relu(self.norm(self.middle(functional.max_pool2d(fine, 2))))
                return self.last(torch.cat([fine, self.up(coarse)], dim=1))

        return Model()

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"accuracy": (outputs.argmax(1) == targets).double().mean()}


class ConvNext(Images):
    def model(self, hp: Any) -> nn.Module:
        class Block(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.spread = nn.Conv2d(4, 4, 5, padding=2, groups=4)
                self.norm, self.wide, self.narrow = nn.LayerNorm(4), nn.Linear(4, 8), nn.Linear(8, 4)
                self.scale = nn.Parameter(0.1 * torch.ones(4))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                inside = self.norm(self.spread(x).permute(0, 2, 3, 1))
                inside = self.scale * self.narrow(functional.gelu(self.wide(inside)))
                return x + inside.permute(0, 3, 1, 2)

        return pooled(nn.Conv2d(3, 4, 2, stride=2), Block(), Block(), features=4)


class VisionTransformer(Images):
    compiled = True

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.patches = nn.Conv2d(3, 6, 4, stride=4)
                self.first, self.places = nn.Parameter(torch.zeros(1, 1, 6)), nn.Parameter(torch.randn(1, 5, 6))
                layer = nn.TransformerEncoderLayer(6, 2, 12, 0.0, "gelu", batch_first=True, norm_first=True)
                self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
                self.last = nn.Linear(6, CLASSES)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                patches = self.patches(x).flatten(2).transpose(1, 2)
                tokens = torch.cat([self.first.expand(len(x), -1, -1), patches], dim=1) + self.places
                return self.last(self.body(tokens)[:, 0])

        return Model()


class Mixer(Images):
    def model(self, hp: Any) -> nn.Module:
        class Block(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.norms = nn.ModuleList([nn.LayerNorm(6) for _ in range(2)])
                self.tokens = nn.Sequential(nn.Linear(16, 8), nn.GELU(), nn.Linear(8, 16))
                self.channels = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                x = x + self.tokens(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
                return x + self.channels(self.norms[1](x))

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.patches, self.last = nn.Conv2d(3, 6, 2, stride=2), nn.Linear(6, CLASSES)
                self.blocks = nn.Sequential(Block(), Block())

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.last(self.blocks(self.patches(x).flatten(2).transpose(1, 2)).mean(1))

        return Model()
