"""A convolutional network for the digits whose depth and widths are hyper-parameters.

    python -m raygpu.sweep conf/sweep/digits_architectures.toml

Trials of one architecture can share an array; the plan says how many architectures the space has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from experiments.digits import Digits
from raygpu import TorchExperiment

if TYPE_CHECKING:
    from torch import nn


class Network(Digits, TorchExperiment):
    """`layers` convolutions of `width1`, `width2` ... maps, each with BatchNorm and half the image's side; then the
    mean of each map."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        from torch import nn

        widths = [hp[f"width{number}"] for number in range(1, hp["layers"] + 1)]
        layers: list[nn.Module] = [nn.Unflatten(1, (1, 8, 8))]
        for before, after in zip([1, *widths], widths, strict=False):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10))
