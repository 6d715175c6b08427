"""A Keras loss or metric that compares each sample with each is refused before a sweep, and no other one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raygpu import KerasExperiment, Mean, Splits, Sum


@pytest.fixture(autouse=True)
def needs_keras() -> None:
    """Not imported with this module: TensorFlow takes seconds, in a process that may run none of these tests."""
    pytest.importorskip("keras")


class Regression(KerasExperiment):
    """Outputs are (batch, 1) and targets (batch,)."""

    def data(self) -> Splits:
        draw = np.random.default_rng(0)
        inputs = draw.normal(size=(8, 5)).astype(np.float32)
        targets = np.abs(inputs).sum(1).round()
        return Splits(inputs, targets, inputs, targets)

    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras

        layers = keras.layers
        return keras.Sequential([layers.Input((5,)), layers.Dense(8, activation="tanh"), layers.Dense(1)])

    def loss(self, outputs: Any, targets: Any) -> Any:
        import keras

        return keras.ops.mean(keras.ops.square(keras.ops.squeeze(outputs, -1) - targets))

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        import keras

        near = keras.ops.abs(outputs[:, 0] - targets) < 0.5
        return {"mae": keras.ops.mean(keras.ops.abs(outputs[:, 0] - targets)), "near": keras.ops.mean(near)}


class Binary(Regression):
    def data(self) -> Splits:
        part = super().data()
        labels = np.asarray(part.train_targets) % 2
        return Splits(part.train_inputs, labels, part.validation_inputs, labels)

    def loss(self, outputs: Any, targets: Any) -> Any:
        import keras

        return keras.losses.binary_crossentropy(targets, outputs[:, 0], from_logits=True)


class ByKeras(Regression):
    """Keras' own losses give the targets the shape of the outputs."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        import keras

        return keras.losses.Huber()(targets, outputs)


class Counted(Regression):
    """A mean over some samples is another one than the mean over samples and over pairs."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        import keras

        counts = keras.ops.cast(targets > 3, "float32")
        return Mean(keras.ops.sum(counts * keras.ops.square(outputs[:, 0] - targets)), keras.ops.sum(counts))


class Contrasted(Regression):
    """A loss of all pairs that is meant: each output is to be nearer to its own target than to the others."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        import keras

        logits = -keras.ops.square(outputs - targets)
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)(keras.ops.arange(len(logits)), logits)


class Noisy(Regression):
    def loss(self, outputs: Any, targets: Any) -> Any:
        import keras

        return super().loss(outputs + keras.random.normal(keras.ops.shape(outputs)), targets)


class Broadcast(Regression):
    def loss(self, outputs: Any, targets: Any) -> Any:
        import keras

        return keras.ops.mean(keras.ops.square(outputs - targets))


class BroadcastSum(Regression):
    def loss(self, outputs: Any, targets: Any) -> Any:
        import keras

        return Sum(keras.ops.sum(keras.ops.square(outputs - targets)))


class BroadcastMean(Regression):
    def loss(self, outputs: Any, targets: Any) -> Any:
        import keras

        counts = keras.ops.cast(targets > 3, "float32")
        return Mean(keras.ops.sum(counts * keras.ops.square(outputs - targets)), keras.ops.sum(counts))


class Whole(Regression):
    """Whole numbers as targets."""

    def data(self) -> Splits:
        part = super().data()
        counts = np.asarray(part.train_targets).astype(np.int64)
        return Splits(part.train_inputs, counts, part.validation_inputs, counts)

    def loss(self, outputs: Any, targets: Any) -> Any:
        import keras

        return keras.ops.mean(keras.ops.exp(outputs) - keras.ops.cast(targets, "float32") * outputs)


class BroadcastTerm(Regression):
    """One of several targets is compared with each output, beside a term that is right."""

    def data(self) -> Splits:
        part = super().data()
        targets = {"sum": part.train_targets, "first": np.asarray(part.train_inputs)[:, :1]}
        return Splits(part.train_inputs, targets, part.validation_inputs, targets)  # type: ignore[arg-type]

    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras

        inputs = keras.Input((5,))
        return keras.Model(inputs, {name: keras.layers.Dense(1, name=name)(inputs) for name in ("sum", "first")})

    def loss(self, outputs: Any, targets: Any) -> Any:
        import keras

        first, total = (keras.ops.square(outputs[name] - targets[name]) for name in ("first", "sum"))
        return keras.ops.mean(first) + keras.ops.mean(total)

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {}


class BroadcastMetric(Regression):
    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        import keras

        errors = keras.ops.square(outputs - targets)
        return super().metrics(outputs, targets) | {"rmse": keras.ops.sqrt(keras.ops.mean(errors))}


class Gaussian(Regression):
    """A mean and a variance for each sample, which are compared with a target (batch, 1)."""

    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras

        return keras.Sequential([keras.layers.Input((5,)), keras.layers.Dense(2)])

    def loss(self, outputs: Any, targets: Any) -> Any:
        import keras

        mean, log_variance = keras.ops.split(outputs, 2, axis=-1)
        errors = keras.ops.square(self.column(targets) - mean)
        return keras.ops.mean(errors * keras.ops.exp(-log_variance) + log_variance)

    def column(self, targets: Any) -> Any:
        return targets[:, None]


class EachGaussian(Gaussian):
    def column(self, targets: Any) -> Any:
        return targets


class Rare(Binary):
    """Its untrained model predicts the same for all samples, which in most of them is right."""

    def data(self) -> Splits:
        part = super().data()
        labels = (np.arange(8) == 5).astype(np.float32)
        return Splits(part.train_inputs, labels, part.validation_inputs, labels)

    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras

        return keras.Sequential(
            [keras.layers.Input((5,)), keras.layers.Dense(1, bias_initializer=keras.initializers.Constant(-9))]
        )

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"accuracy": self.accuracy(outputs[:, 0], targets)}

    def accuracy(self, outputs: Any, targets: Any) -> Any:
        import keras

        return keras.ops.mean(keras.ops.cast(outputs > 0, "float32") == targets)


class EachRare(Rare):
    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"accuracy": self.accuracy(outputs, targets)}


def check(kind: Any) -> None:
    from raygpu.search.trials import Trial
    from raygpu.training.base import Settings
    from raygpu.training.keras.broadcast_check import require_no_broadcast
    from raygpu.training.keras.solo import KerasSolo

    experiment = kind()
    require_no_broadcast(
        KerasSolo(experiment, experiment.data(), Trial("t0000", 0, {}), Settings(1, 1, "float32", Path()))
    )


@pytest.mark.parametrize("kind", [Regression, Binary, ByKeras, Counted, Contrasted, Noisy, Gaussian, Rare])
def test_what_compares_each_with_its_own_passes(kind: Any) -> None:
    check(kind)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Broadcast, r"loss\(\) gets outputs \(8, 1\) and targets \(8,\), and compares each with each: reshape"),
        (BroadcastSum, r"loss\(\) gets .* compares each with each"),
        (BroadcastMean, r"loss\(\) gets .* compares each with each"),
        (Whole, r"loss\(\) gets .* compares each with each"),
        (BroadcastTerm, r"loss\(\) gets outputs \{'sum': \(8, 1\), 'first': \(8, 1\)\} and targets \{'sum': \(8,\)"),
        (EachRare, r"the metric 'accuracy' gets .* compares each with each"),
        (EachGaussian, r"loss\(\) gets outputs \(8, 2\) and targets \(8,\), .*\(targets, \(-1, 1\)\)"),
        (BroadcastMetric, r"the metric 'rmse' gets .* compares each with each"),
    ],
)
def test_what_compares_each_with_each_is_refused(kind: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check(kind)
