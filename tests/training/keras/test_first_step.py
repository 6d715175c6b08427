"""What a first step shows of a Keras experiment: what it ignores, and what a checkpoint does not hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from raygpu import KerasExperiment, Splits
from tests.small_data import few


class Plain(KerasExperiment):
    def data(self) -> Splits:
        return few(40)

    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras

        layers = keras.layers
        inner = [layers.Dense(8), layers.BatchNormalization(), layers.Dropout(0.3), layers.Dense(10)]
        return keras.Sequential([layers.Input((64,)), *inner])

    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        import keras

        return inputs + 0.1 * keras.random.normal(keras.ops.shape(inputs))


class Drawing(Plain):
    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        import tensorflow as tf

        return inputs + 0.1 * tf.random.normal(tf.shape(inputs))


class DrawingByItself(Plain):
    def __init__(self) -> None:
        import tensorflow as tf

        self.generator = tf.random.Generator.from_seed(1)

    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        import tensorflow as tf

        return inputs + 0.1 * self.generator.normal(tf.shape(inputs))


class Counting(Plain):
    """A layer's tf.Variable, which Keras does not save."""

    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras
        import tensorflow as tf

        class Counter(keras.layers.Layer):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.count = tf.Variable(0.0, trainable=False, name="count")

            def call(self, inputs: Any, training: bool = False) -> Any:
                if training:
                    self.count.assign_add(1.0)
                return inputs + self.count

        return keras.Sequential([keras.layers.Input((64,)), Counter(), keras.layers.Dense(10)])


class CountingLoss(Plain):
    def __init__(self) -> None:
        import tensorflow as tf

        self.count = tf.Variable(0.0, name="calls")
        self.table = tf.Variable([1.0, 2.0])

    def loss(self, outputs: Any, targets: Any) -> Any:
        self.count.assign_add(1.0)
        return super().loss(outputs, targets) * (self.table[0] + 0.05 * self.count)


class Held(Plain):
    def __init__(self) -> None:
        import keras

        self.measured = {"accuracy": keras.metrics.SparseCategoricalAccuracy()}

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        self.measured["accuracy"].update_state(targets, outputs)
        return {"accuracy": self.measured["accuracy"].result()}


class HeldFresh(Held):
    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        self.measured["accuracy"].reset_state()
        return super().metrics(outputs, targets)


class Compiled(Plain):
    def model(self, hp: Mapping[str, Any]) -> Any:
        model = super().model(hp)
        model.compile(optimizer="adam", loss="mse")
        return model


class OwnStep(Plain):
    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras

        class Model(keras.Sequential):  # type: ignore[misc]
            def train_step(self, data: Any) -> Any:
                raise NotImplementedError

        return Model([keras.layers.Input((64,)), keras.layers.Dense(10)])


def first(kind: Any) -> tuple[tuple[str, ...], frozenset[str]]:
    pytest.importorskip("tensorflow")
    from raygpu.training.keras.first_step import first_result

    return first_result(kind(), few(40).first(8), {"lr": 0.1})[2:]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Drawing, "tf.random draws numbers while it trains, and a checkpoint does not hold it"),
        (DrawingByItself, "tf.Variable StateVar changes while it trains, and a checkpoint does not hold it"),
        (Counting, "tf.Variable count changes while it trains, and a checkpoint does not hold it"),
        (CountingLoss, "tf.Variable calls changes while it trains, and a checkpoint does not hold it"),
        (Compiled, "model(hp) returns a model that is compiled: it is trained by the experiment's loss()"),
        (OwnStep, "model(hp) returns a model with a train_step() of its own: it is trained by the experiment's"),
    ],
)
def test_what_is_ignored_or_lost_is_told(kind: Any, words: str) -> None:
    (line,), lost = first(kind)
    assert line.startswith(words)
    assert ("validation/loss" in lost) == (kind in (Counting, CountingLoss)), "of a loaded model"


@pytest.mark.parametrize("kind", [Plain, HeldFresh])
def test_what_a_checkpoint_holds_is_not(kind: Any) -> None:
    assert first(kind) == ((), frozenset())


def test_a_metric_that_adds_up_batches_is_refused() -> None:
    with pytest.raises(ValueError, match=r"keras\.metrics\.SparseCategoricalAccuracy adds up all batches and epochs"):
        first(Held)
