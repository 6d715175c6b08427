"""Layers of torch.nn one by one: linear ones, activations, convolutions, pooling, normalisation."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from tests.contracts.zoo.entry import (
    CLASSES,
    WIDTH,
    Call,
    Images,
    Numbers,
    Series,
    Vectors,
    Volumes,
    ended,
    mlp,
)

PARTS = r"BatchNorm|InstanceNorm|statistic|buffer|depend on the rest of its batch"
"""How raygpu says that a layer normalises each part of a batch by itself, or keeps statistics of it."""


class Linear(Numbers):
    compiled = True

    def model(self, hp: Any) -> nn.Module:
        return nn.Linear(WIDTH, 2)


class Mlp(Vectors):
    """Its hidden units are a hyper-parameter of all members."""

    compiled = True
    own: ClassVar[Any] = tuple({**own, "hidden": 6} for own in Vectors.own)

    def model(self, hp: Any) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, hp["hidden"]), nn.ReLU(), nn.Linear(hp["hidden"], CLASSES))


class OtherOptimizers(Vectors):
    own: ClassVar[Any] = (
        {"optimizer": "adamw", "lr": 1e-2},
        {"optimizer": "adamw", "lr": 3e-3, "weight_decay": 0.1, "schedule": "cosine"},
        {"optimizer": "adamw", "lr": 5e-3, "betas": (0.8, 0.99), "warmup_epochs": 0.5},
    )

    def model(self, hp: Any) -> nn.Module:
        return mlp(nn.Tanh())


class Bilinear(Vectors):
    fused = r"aten::bilinear (runs as a slow loop|has no rule)"

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.pair = nn.Bilinear(WIDTH // 2, WIDTH // 2, CLASSES)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.pair(*x.chunk(2, dim=1))

        return Model()


class Activations(Vectors):
    """All activations that draw nothing and learn nothing, each on its own features."""

    def model(self, hp: Any) -> nn.Module:
        kinds = (
            *(nn.ELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardtanh, nn.Hardswish, nn.LeakyReLU, nn.LogSigmoid, nn.ReLU),
            *(nn.ReLU6, nn.SELU, nn.CELU, nn.GELU, nn.Sigmoid, nn.SiLU, nn.Mish, nn.Softplus, nn.Softshrink),
            *(nn.Softsign, nn.Tanh, nn.Tanhshrink, lambda: nn.Threshold(0.1, -1.0), nn.GLU),
            *(nn.Softmin, nn.Softmax, nn.LogSoftmax),
        )

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.each = nn.ModuleList([kind() for kind in kinds])
                for layer in self.each:
                    if hasattr(layer, "dim"):
                        layer.dim = -1
                self.first, self.last = nn.Linear(WIDTH, 6 * len(kinds)), nn.Linear(6 * len(kinds) - 3, CLASSES)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                parts = self.first(x).split(6, dim=1)
                found = [layer(part) for layer, part in zip(self.each, parts, strict=True)]
                return self.last(torch.cat(found, dim=1))

        return Model()


class PRelu(Vectors):
    def model(self, hp: Any) -> nn.Module:
        return mlp(nn.PReLU(), nn.Linear(8, 8), nn.PReLU(8))


class Softmax2d(Images):
    def model(self, hp: Any) -> nn.Module:
        return ended(nn.Softmax2d(), features=192)


class Conv1d(Series):
    def model(self, hp: Any) -> nn.Module:
        return ended(nn.Conv1d(9, 8, 3, padding="same"), nn.ReLU(), nn.Conv1d(8, 4, 2, stride=2), features=12)


class Conv2d(Images):
    compiled = True

    def model(self, hp: Any) -> nn.Module:
        first = nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect")
        return ended(first, nn.ReLU(), nn.Conv2d(4, 4, (3, 1), stride=2, bias=False), features=4 * 3 * 4)


class ChannelsLast(Images):
    compiled = True

    def model(self, hp: Any) -> nn.Module:
        layers = nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 2)
        found: nn.Module = ended(*layers, features=4 * 3 * 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return found


class Conv3d(Volumes):
    def model(self, hp: Any) -> nn.Module:
        return ended(nn.Conv3d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv3d(4, 2, 2, stride=2), features=16)


class TransposedConvolutions(Images):
    def model(self, hp: Any) -> nn.Module:
        layers = nn.Conv2d(3, 4, 2, stride=2), nn.ConvTranspose2d(4, 2, 3, stride=2, output_padding=1)
        return ended(*layers, nn.Flatten(2), nn.ConvTranspose1d(2, 1, 2, stride=2), features=200)


class TransposedConv3d(Volumes):
    def model(self, hp: Any) -> nn.Module:
        return ended(nn.ConvTranspose3d(2, 1, 2, stride=2), features=512)


class GroupedConvolution(Images):
    def model(self, hp: Any) -> nn.Module:
        return ended(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3, groups=2), features=64)


class DepthwiseConvolution(Images):
    def model(self, hp: Any) -> nn.Module:
        return ended(nn.Conv2d(3, 6, 3, groups=3), nn.ReLU(), nn.Conv2d(6, 2, 1), features=72)


class DilatedConvolution(Images):
    def model(self, hp: Any) -> nn.Module:
        return ended(nn.Conv2d(3, 4, 3, dilation=2), nn.ReLU(), features=64)


class MaxPooling(Images):
    def model(self, hp: Any) -> nn.Module:
        return ended(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.Flatten(2), nn.MaxPool1d(3, padding=1), features=12)


class AveragePooling(Images):
    def model(self, hp: Any) -> nn.Module:
        layers = nn.AvgPool2d(3, 2, padding=1, count_include_pad=False), nn.Flatten(2), nn.AvgPool1d(2)
        return ended(nn.Conv2d(3, 4, 3), *layers, features=16)


class PoolingIn3d(Volumes):
    def model(self, hp: Any) -> nn.Module:
        layers = nn.MaxPool3d(3, 1, padding=1), nn.AvgPool3d(2)
        return ended(nn.Conv3d(2, 4, 1), *layers, features=32)


class AdaptivePooling(Images):
    def model(self, hp: Any) -> nn.Module:
        layers = nn.AdaptiveAvgPool2d((5, 3)), nn.Flatten(2), nn.AdaptiveAvgPool1d(7)
        return ended(nn.Conv2d(3, 4, 3), *layers, features=28)


class AdaptiveMaxPooling(Images):
    fused = r"aten::adaptive_max_pool\w+ (runs as a slow loop|has no rule)"

    def model(self, hp: Any) -> nn.Module:
        return ended(nn.Conv2d(3, 4, 3), nn.AdaptiveMaxPool2d((5, 3)), features=60)


class AdaptivePoolingIn3d(Volumes):
    fused = r"aten::_?adaptive_\w+ (runs as a slow loop|has no rule)"

    def model(self, hp: Any) -> nn.Module:
        return ended(nn.Conv3d(2, 4, 1), nn.AdaptiveAvgPool3d(2), features=32)


class PowerPooling(Images):
    """Lp pooling of norm 2, on positive values: its gradient at 0 is no number."""

    def model(self, hp: Any) -> nn.Module:
        return ended(nn.Conv2d(3, 4, 3), nn.Softplus(), nn.LPPool2d(2, 2), features=36)


class FractionalPooling(Images):
    random = True
    fused = r"aten::(fractional_max_pool\w+|rand\w*) (runs as a slow loop|has no rule)"

    def model(self, hp: Any) -> nn.Module:
        return ended(nn.Conv2d(3, 4, 3), nn.FractionalMaxPool2d(2, output_size=3), features=36)


class Unpooling(Images):
    fused = r"aten::max_unpool\w+ (runs as a slow loop|has no rule)"

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.last = nn.Conv2d(3, 2, 1), nn.Linear(128, CLASSES)
                self.down, self.up = nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.last(self.up(*self.down(self.first(x))).flatten(1))

        return Model()


class BatchNorm1d(Vectors):
    production = PARTS
    compiled = True

    def model(self, hp: Any) -> nn.Module:
        return mlp(nn.BatchNorm1d(8), nn.ReLU())


class BatchNorm2d(Images):
    production = PARTS

    def model(self, hp: Any) -> nn.Module:
        return ended(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=0.3), nn.ReLU(), features=144)


class BatchNormWithoutStatistics(Vectors):
    production = PARTS

    def model(self, hp: Any) -> nn.Module:
        return mlp(nn.BatchNorm1d(8, track_running_stats=False), nn.ReLU())


class AveragingBatchNorm(Vectors):
    """Its statistics are the mean over all steps: it counts them."""

    fused = r"BatchNorm|momentum|num_batches_tracked|into a number|\.item\(\)"
    production = PARTS

    def model(self, hp: Any) -> nn.Module:
        return mlp(nn.BatchNorm1d(8, momentum=None), nn.ReLU())


class LayerNorm(Series):
    def model(self, hp: Any) -> nn.Module:
        return ended(nn.LayerNorm((9, 6)), nn.Linear(6, 4), nn.LayerNorm(4, bias=False), features=36)


class GroupNorm(Images):
    def model(self, hp: Any) -> nn.Module:
        return ended(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), features=144)


class InstanceNorm(Images):
    def model(self, hp: Any) -> nn.Module:
        return ended(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.ReLU(), features=144)


class InstanceNormWithStatistics(Images):
    production = PARTS

    def model(self, hp: Any) -> nn.Module:
        layers = nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True, track_running_stats=True), nn.ReLU()
        return ended(*layers, features=144)


class RmsNorm(Series):
    def model(self, hp: Any) -> nn.Module:
        return ended(nn.Linear(6, 8), nn.RMSNorm(8), features=72)


class LocalResponseNorm(Images):
    def model(self, hp: Any) -> nn.Module:
        return ended(nn.Conv2d(3, 6, 3), nn.LocalResponseNorm(3), features=216)


class Shuffles(Images):
    """Pixel shuffle and its reverse, and channel shuffle."""

    fused = r"aten::\w*channel_shuffle (runs as a slow loop|has no rule)"

    def model(self, hp: Any) -> nn.Module:
        layers = nn.PixelUnshuffle(2), nn.Conv2d(12, 8, 1), nn.ChannelShuffle(2), nn.PixelShuffle(2)
        return ended(*layers, features=128)


class PixelShuffle(Images):
    def model(self, hp: Any) -> nn.Module:
        return ended(nn.PixelUnshuffle(2), nn.Conv2d(12, 8, 1), nn.PixelShuffle(2), features=128)


class FoldUnfold(Images):
    def model(self, hp: Any) -> nn.Module:
        windows = nn.Unfold(3, padding=1), Call(lambda x: x.transpose(1, 2)), nn.Linear(27, 18)
        return ended(*windows, Call(lambda x: x.transpose(1, 2)), nn.Fold(8, 3, padding=1), features=128)


class Upsampling(Images):
    def model(self, hp: Any) -> nn.Module:
        layers = nn.Upsample(scale_factor=2), nn.Conv2d(3, 2, 3, stride=3), nn.Upsample((4, 7), mode="bilinear")
        return ended(*layers, features=56)


class Padding(Images):
    def model(self, hp: Any) -> nn.Module:
        layers = nn.ReflectionPad2d(1), nn.ZeroPad2d((1, 0, 2, 1)), nn.ReplicationPad2d(1), nn.CircularPad2d(1)
        return ended(*layers, nn.ConstantPad2d(1, 0.5), nn.Conv2d(3, 1, 3, stride=2), features=72)


class WeightNorm(Vectors):
    fused = r"aten::_weight_norm\w* (runs as a slow loop|has no rule)"

    def model(self, hp: Any) -> nn.Module:
        return mlp(nn.ReLU(), nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)))


class SpectralNorm(Vectors):
    """Its power iteration changes a buffer in place in each forward pass of a training."""

    fused = r"(?i:spectral)|parametriz"
    production = r"buffer|spectral|parametriz|_u\b|statistic"

    def model(self, hp: Any) -> nn.Module:
        return mlp(nn.ReLU(), nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)))


class SpectralNormByHook(Vectors):
    """The older one of torch, whose hook makes the weight anew before each forward pass."""

    fused = r"weight changes while it trains"
    production = r"buffers that training changes"

    def model(self, hp: Any) -> nn.Module:
        return mlp(nn.ReLU(), nn.utils.spectral_norm(nn.Linear(8, 8)))


class OrthogonalWeight(Vectors):
    fused = r"aten::\w+ (runs as a slow loop|has no rule)|orthogonal|parametriz"

    def model(self, hp: Any) -> nn.Module:
        return mlp(nn.ReLU(), nn.utils.parametrizations.orthogonal(nn.Linear(8, 8)))


class OwnParametrization(Vectors):
    def model(self, hp: Any) -> nn.Module:
        class Symmetric(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x.triu() + x.triu(1).transpose(-1, -2)

        layer = nn.Linear(8, 8)
        nn.utils.parametrize.register_parametrization(layer, "weight", Symmetric())
        return mlp(nn.Tanh(), layer)
