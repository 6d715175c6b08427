"""MNIST, handwritten digits of 28 x 28: the same two small networks in PyTorch and in Keras.

    python -m raygpu.sweep conf/sweep/mnist.toml                    Mlp
    python -m raygpu.sweep conf/sweep/mnist.toml --data.synthetic   without the data set, to measure speed

Images reach the models as uint8 (n, 28, 28), which their first layer scales.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiments import datasets
from raygpu import KerasExperiment, Splits, TorchExperiment

if TYPE_CHECKING:
    from collections.abc import Mapping

    import keras
    from torch import nn

MEAN, STD = [0.1307], [0.3081]
"""Of the pixels, scaled to 0..1."""


class Mnist:
    """The data, real and synthetic."""

    def data(self) -> Splits:
        return datasets.mnist()

    def synthetic(self) -> Splits:
        return datasets.synthetic(50_000, 10_000, (28, 28))


class Mlp(Mnist, TorchExperiment):
    """One hidden layer of `hidden` units."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        from torch import nn

        from experiments.torch_networks import Pixels

        hidden = hp["hidden"]
        return nn.Sequential(Pixels(MEAN, STD), nn.Flatten(), nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10))


class Cnn(Mnist, TorchExperiment):
    """Two convolutions, of `channels` and twice as many maps, then a linear layer."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        from torch import nn

        from experiments.torch_networks import Pixels

        channels = hp["channels"]
        layers: list[nn.Module] = [Pixels(MEAN, STD), nn.Unflatten(1, (1, 28))]
        for before, after in ((1, channels), (channels, 2 * channels)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2 * channels * 7 * 7, 10))


class KerasMlp(Mnist, KerasExperiment):
    """The same network as `Mlp`, in Keras."""

    def model(self, hp: Mapping[str, Any]) -> keras.Model:
        import keras
        from keras import layers

        from experiments.keras_networks import pixels

        hidden = layers.Dense(hp["hidden"], activation="relu")
        flat = [keras.Input((28, 28)), layers.Reshape((28, 28, 1)), pixels(MEAN, STD), layers.Flatten()]
        return keras.Sequential([*flat, hidden, layers.Dense(10)])


class KerasCnn(Mnist, KerasExperiment):
    """The same network as `Cnn`, in Keras."""

    def model(self, hp: Mapping[str, Any]) -> keras.Model:
        import keras
        from keras import layers

        from experiments.keras_networks import pixels

        parts = [keras.Input((28, 28)), layers.Reshape((28, 28, 1)), pixels(MEAN, STD)]
        for after in (hp["channels"], 2 * hp["channels"]):
            parts += [layers.Conv2D(after, 3, padding="same", activation="relu"), layers.MaxPooling2D()]
        return keras.Sequential([*parts, layers.Flatten(), layers.Dense(10)])
