"""scikit-learn's handwritten digits, 1797 images of 8 x 8: small, real, and embedded, so nothing is downloaded.

    python -m raygpu.sweep conf/sweep/digits.toml         Mlp
    python -m raygpu.sweep conf/sweep/digits_cnn.toml     Cnn, its architecture searched too
    python -m raygpu.sweep conf/sweep/digits_test.toml    TestedMlp, with test data that the search never sees
    python -m raygpu.sweep conf/sweep/digits_keras.toml   KerasMlp (needs TensorFlow)

Frameworks are imported where they are used: a sweep of one never loads the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from experiments import datasets
from raygpu import KerasExperiment, Splits, TorchExperiment

if TYPE_CHECKING:
    from collections.abc import Mapping

    import keras
    from torch import nn


def digits(test: float | None = None) -> Splits:
    """Pixels scaled to 0..1, float32 (n, 64), against the digit, int64 (n,): 1437 to train, 360 to validate.

    test: share of the images to keep as test data; by default none.
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return Splits.of((pixels / 16).astype(np.float32), labels.astype(np.int64), validation=0.2, test=test, seed=0)


class Digits:
    """The data, real and synthetic."""

    def data(self) -> Splits:
        return digits()

    def synthetic(self) -> Splits:
        return datasets.synthetic(1437, 360, (64,), pixels=False)


class Mlp(Digits, TorchExperiment):
    """One hidden layer of `hidden` units."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        from torch import nn

        return nn.Sequential(nn.Linear(64, hp["hidden"]), nn.ReLU(), nn.Linear(hp["hidden"], 10))


class TestedMlp(Mlp):
    """`Mlp` with a fifth of the images as test data: 1077 to train, 360 to validate, 360 for the winner alone."""

    def data(self) -> Splits:
        return digits(test=0.2)


class Cnn(Digits, TorchExperiment):
    """`blocks` convolutions (1 or 2) of `channels` and `channels2` maps with BatchNorm, then a linear layer."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        from torch import nn

        widths = [hp["channels"], *([hp["channels2"]] if hp["blocks"] == 2 else [])]
        layers: list[nn.Module] = [nn.Unflatten(1, (1, 8, 8))]
        for before, after in zip([1, *widths], widths, strict=False):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
        side = 8 // 2 ** len(widths)
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(widths[-1] * side * side, 10))


class KerasMlp(Digits, KerasExperiment):
    """The same network as `Mlp`, in Keras."""

    def model(self, hp: Mapping[str, Any]) -> keras.Model:
        import keras

        return keras.Sequential(
            [keras.Input((64,)), keras.layers.Dense(hp["hidden"], activation="relu"), keras.layers.Dense(10)]
        )
