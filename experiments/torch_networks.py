"""What the experiments' networks in PyTorch are made of: pixels scaled, a residual network, two towers.

Imported inside `model()`: an experiment's module loads no framework.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


class Pixels(nn.Module):
    """Pixels of 0 to 255, whole numbers as they lie in memory, in floating point with mean 0 and variance 1.

    mean, std: of the data set, scaled to 0..1, for each channel; pixels are (..., channels, height, width).
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", 255 * torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", 255 * torch.tensor(std).view(-1, 1, 1))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return (pixels.to(self.mean.dtype) - self.mean) / self.std


class Residual(nn.Module):
    """shortcut(x) + f(x), and ReLU; the shortcut is a convolution of 1 x 1 where the shape changes."""

    def __init__(self, inner: nn.Sequential, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.inner = inner
        self.shortcut: nn.Module = nn.Identity()
        if before != after or stride != 1:
            self.shortcut = nn.Sequential(*convolution(before, after, 1, stride))
        self.activation = nn.ReLU()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.activation(self.shortcut(inputs) + self.inner(inputs))


class BasicBlock(Residual):
    """Two convolutions of 3 x 3, of `channels` maps."""

    expansion = 1

    def __init__(self, before: int, channels: int, stride: int = 1) -> None:
        inner = nn.Sequential(*convolution(before, channels, 3, stride), nn.ReLU(), *convolution(channels, channels, 3))
        super().__init__(inner, before, channels, stride)


class Bottleneck(Residual):
    """Convolutions of 1 x 1, 3 x 3 and 1 x 1, of `channels`, `channels` and four times `channels` maps."""

    expansion = 4

    def __init__(self, before: int, channels: int, stride: int = 1) -> None:
        after = self.expansion * channels
        inner = nn.Sequential(
            *convolution(before, channels, 1),
            nn.ReLU(),
            *convolution(channels, channels, 3, stride),
            nn.ReLU(),
            *convolution(channels, after, 1),
        )
        super().__init__(inner, before, after, stride)


def convolution(before: int, after: int, size: int, stride: int = 1) -> list[nn.Module]:
    """A convolution of size x size and its BatchNorm."""
    return [nn.Conv2d(before, after, size, stride, padding=size // 2, bias=False), nn.BatchNorm2d(after)]


def resnet(
    block: type[BasicBlock | Bottleneck], blocks: Sequence[int], channels: int, classes: int = 10
) -> nn.Sequential:
    """A residual network for small images of three channels: (n, 3, h, w) to (n, classes).

    A stem of 3 x 3 that keeps the size, then stages of `channels`, 2, 4 ... times as many maps, each half the size of
    the one before. blocks: of each stage. ResNet-18 is BasicBlock, (2, 2, 2, 2); ResNet-50 Bottleneck, (3, 4, 6, 3);
    both of 64 channels (He et al. 2016, with the stem that is used on CIFAR-10).
    """
    layers: list[nn.Module] = [*convolution(3, channels, 3), nn.ReLU()]
    before = channels
    for stage, count in enumerate(blocks):
        for place in range(count):
            layers.append(block(before, channels * 2**stage, 2 if stage > 0 and place == 0 else 1))
            before = block.expansion * channels * 2**stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


def crop_and_flip(images: torch.Tensor, padding: int) -> torch.Tensor:
    """Each image (n, c, h, w) padded with zeros, cut to its own size at a place drawn by chance, and half of them
    mirrored: one gather, whose indices are drawn without a Python `if`, so that vmap and CUDA graphs can follow."""
    count, channels, height, width = images.shape
    device = images.device
    padded = nn.functional.pad(images, [padding] * 4)
    top, left = (torch.randint(2 * padding + 1, (count, 1), device=device) for _ in range(2))
    mirrored = torch.randint(2, (count, 1), device=device)
    across = torch.arange(width, device=device)
    rows = top + torch.arange(height, device=device)
    columns = left + across + mirrored * (width - 1 - 2 * across)
    return padded[
        torch.arange(count, device=device)[:, None, None, None],
        torch.arange(channels, device=device)[None, :, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]


class TwoTowers(nn.Module):
    """The documents of a user and of an item, int (batch, words), each through a tower of its own; joined to the stars,
    (batch,). middle: what the untrained model predicts, about."""

    def __init__(self, num_words: int, embedding: int, filters: int, latent: int, middle: float) -> None:
        super().__init__()
        self.user_tower = Tower(num_words, embedding, filters, latent)
        self.item_tower = Tower(num_words, embedding, filters, latent)
        self.join = nn.Linear(3 * latent, 1)
        nn.init.constant_(self.join.bias, middle)

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        one, other = self.user_tower(user), self.item_tower(item)
        return self.join(torch.cat([one, other, one * other], -1)).squeeze(-1)


class Tower(nn.Module):
    """A document of word numbers (batch, words): embedded, convolved five words at a time, tanh, its maximum over the
    document, and a dense layer: (batch, latent)."""

    def __init__(self, num_words: int, embedding: int, filters: int, latent: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_words, embedding)
        self.convolution = nn.Conv1d(embedding, filters, 5, padding=2)
        self.dense = nn.Linear(filters, latent)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        maps = self.convolution(self.embedding(words).transpose(1, 2)).tanh()
        return self.dense(maps.amax(-1)).relu()
