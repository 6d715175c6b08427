"""What a first step shows of a Keras experiment: what it ignores, what a checkpoint does not hold, and what tracing
would fix."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from raygpu import KerasExperiment, Splits
from tests.small_data import few

GLOBAL: list[Any] = []
COUNT = 0


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


class HeldByClass(Held):
    """The object is an attribute of the class."""

    measured: Any = None

    def __init__(self) -> None:
        import keras

        type(self).measured = {"accuracy": keras.metrics.SparseCategoricalAccuracy()}


class HeldByModule(Plain):
    def __init__(self) -> None:
        import keras

        GLOBAL.append(keras.metrics.SparseCategoricalAccuracy())

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        GLOBAL[-1].update_state(targets, outputs)
        return {"accuracy": GLOBAL[-1].result()}


class OwnSum(Plain):
    """Sums in tf.Variables of its own."""

    def __init__(self) -> None:
        import tensorflow as tf

        self.hits, self.calls = tf.Variable(0.0, name="hits"), tf.Variable(0.0)

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        self.hits.assign_add(super().metrics(outputs, targets)["accuracy"])
        self.calls.assign_add(1.0)
        return {"accuracy": self.hits / self.calls}


class UnusedSum(OwnSum):
    """Sums that no metric shows."""

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        super().metrics(outputs, targets)
        return Plain.metrics(self, outputs, targets)


class HeldFresh(Held):
    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        self.measured["accuracy"].reset_state()
        return super().metrics(outputs, targets)


class Annealing(Plain):
    def __init__(self) -> None:
        self.calls = 0

    def loss(self, outputs: Any, targets: Any) -> Any:
        self.calls += 1
        return super().loss(outputs, targets) * min(1.0, self.calls / 20)


class AnnealingByModule(Plain):
    def loss(self, outputs: Any, targets: Any) -> Any:
        global COUNT
        COUNT += 1
        return super().loss(outputs, targets) * COUNT


class AnnealingMetric(Plain):
    """The attribute is the class's, and then the object's."""

    calls = 0

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        self.calls += 1
        return {"accuracy": super().metrics(outputs, targets)["accuracy"] * self.calls}


class AnnealingLayer(Plain):
    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras

        class Growing(keras.layers.Layer):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.scale = 1.0

            def call(self, inputs: Any) -> Any:
                self.scale += 0.1
                return inputs * self.scale

        return keras.Sequential([keras.layers.Input((64,)), Growing(), keras.layers.Dense(10)])


class DrawingByNumpy(Plain):
    """Half of the batches are to be turned."""

    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        return -inputs if np.random.rand() < 0.5 else inputs


class DrawingByPython(Plain):
    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        return inputs * random.choice([-1.0, 1.0])


class DrawingByOwn(Plain):
    def __init__(self) -> None:
        self.generator = np.random.default_rng(0)

    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        return inputs + self.generator.normal(size=64).astype(np.float32)


class Remembering(Plain):
    """What is made in the first tracing and kept, a count that nothing is computed with, and a layer of its own."""

    table: Any = None
    layer: Any = None

    def __init__(self) -> None:
        self.calls, self.shapes = 0, list[Any]()

    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        import keras

        if self.layer is None:
            self.layer = keras.layers.GaussianNoise(0.1)
        return self.layer(inputs, training=True)

    def loss(self, outputs: Any, targets: Any) -> Any:
        self.calls += 1
        self.shapes.append(tuple(outputs.shape))
        if self.table is None:
            self.table = np.random.normal(size=10).astype(np.float32)
        return super().loss(outputs * self.table, targets)


class KeepingATensor(Plain):
    """A tensor of the first tracing, which a second one could not use."""

    table: Any = None

    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        import tensorflow as tf

        if self.table is None:
            self.table = tf.constant(np.random.normal(size=64), tf.float32)
        return inputs + self.table


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


class InHalf(Plain):
    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras

        layers, half = keras.layers, {"dtype": "bfloat16"}
        return keras.Sequential([layers.Input((64,)), layers.Dense(8, **half), layers.Dense(10, **half)])


class HeadAlone(Plain):
    """Its body is of bfloat16, and gets no gradient."""

    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras

        inputs = keras.Input((64,))
        values = keras.layers.Dense(8, dtype="bfloat16")(inputs)
        return keras.Model(inputs, keras.layers.Dense(10)(keras.ops.stop_gradient(values)))


class OwnHead(Plain):
    """It keeps a layer whose weights the loss gives a gradient."""

    def __init__(self, trainable: bool = True) -> None:
        import keras

        self.head = keras.layers.Dense(10)
        self.head.build((None, 10))
        self.head.trainable = trainable
        self.unused = [keras.Variable(np.zeros(3, np.float32))]

    def loss(self, outputs: Any, targets: Any) -> Any:
        return super().loss(self.head(outputs), targets)


def frozen_head() -> OwnHead:
    return OwnHead(trainable=False)


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
        (OwnHead, "self.head gets a gradient and is no part of the model, so that no optimizer changes it"),
        (InHalf, "parameters are trained in bfloat16: of a step that moves one by less than 0.2 %"),
    ],
)
def test_what_is_ignored_or_lost_is_told(kind: Any, words: str) -> None:
    (line,), lost = first(kind)
    assert line.startswith(words)
    assert ("validation/loss" in lost) == (kind in (Counting, CountingLoss)), "of a loaded model"


@pytest.mark.parametrize("kind", [Plain, HeldFresh, UnusedSum, Remembering, KeepingATensor, HeadAlone, frozen_head])
def test_what_a_checkpoint_holds_is_not(kind: Any) -> None:
    assert first(kind) == ((), frozenset())


@pytest.mark.parametrize("kind", [Held, HeldByClass, HeldByModule])
def test_a_metric_that_adds_up_batches_is_refused(kind: Any) -> None:
    with pytest.raises(ValueError, match=r"keras\.metrics\.SparseCategoricalAccuracy adds up all batches and epochs"):
        first(kind)


def test_a_sum_in_a_variable_of_the_metrics_is_refused() -> None:
    with pytest.raises(ValueError, match=r"tf\.Variable hits adds up all batches and epochs"):
        first(OwnSum)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Annealing, r"^Annealing's self\.calls changes as a step is traced, which is done once"),
        (AnnealingByModule, "^the global COUNT changes as a step is traced"),
        (AnnealingMetric, r"^AnnealingMetric's self\.calls changes as a step is traced"),
        (AnnealingLayer, r"^Growing's self\.scale changes as a step is traced"),
        (DrawingByNumpy, r"^random numbers are drawn from np\.random as a step is traced, which is done once"),
        (DrawingByPython, "^random numbers are drawn from Python's random as a step is traced"),
        (DrawingByOwn, r"^random numbers are drawn from DrawingByOwn's self\.generator as a step is traced"),
    ],
)
def test_what_tracing_would_fix_is_refused(kind: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        first(kind)
