"""A network for data-parallel benchmarks: much to compute and little to send."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import nn

from experiments.digits import Digits, digits
from raygpu.experiment import Splits, TorchExperiment


class Convolutions(Digits, TorchExperiment):
    """`layers` convolutions of `channels` maps, without BatchNorm, whose statistics are a rank's own on a CPU."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        channels = hp["channels"]
        layers: list[nn.Module] = [nn.Unflatten(1, (1, 8, 8))]
        for before in [1, *[channels] * (hp["layers"] - 1)]:
            layers += [nn.Conv2d(before, channels, 3, padding=1), nn.ReLU()]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels, 10))


def repeated(times: int) -> Splits:
    """Digits, so many times over: for measuring speed, where an epoch has to have many large batches."""
    whole = digits()
    inputs, targets = np.asarray(whole.train_inputs), np.asarray(whole.train_targets)
    return Splits(
        np.tile(inputs, (times, 1)), np.tile(targets, times), whole.validation_inputs, whole.validation_targets
    )
