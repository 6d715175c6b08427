"""Experiments in Keras, in a module without torch, which their workers would import for nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from experiments.digits import KerasMlp
from raygpu import KerasExperiment, Splits
from tests.best_functions import constant
from tests.processes import die_once
from tests.small_data import few, halves


class FewKeras(KerasMlp):
    def data(self) -> Splits:
        return few()


class KerasPassing(KerasExperiment):
    """As `best_cases.Passing`."""

    def data(self) -> Splits:
        return constant()

    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras

        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        return keras.Sequential([keras.layers.Input((1,)), layer])

    def loss(self, outputs: Any, targets: Any) -> Any:
        import tensorflow as tf

        return -tf.reduce_mean(outputs)

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        import tensorflow as tf

        return {"score": -tf.reduce_mean((outputs - targets) ** 2)}


class KerasNamed(KerasExperiment):
    """Two inputs by name, and dropout, so that random state matters."""

    def data(self) -> Splits:
        return halves()

    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras

        layers = keras.layers
        inputs = {name: keras.Input((32,), name=name) for name in ("left", "right")}
        halves = [layers.Dense(hp["hidden"])(inputs[name]) for name in ("left", "right")]
        hidden = layers.Dropout(0.2)(layers.Activation("relu")(layers.Add()(halves)))
        return keras.Model(inputs, layers.Dense(10)(hidden))


class KerasNoisy(FewKeras):
    """Dropout, and noise at the inputs from the generator of `keras.random`."""

    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras

        hidden = keras.layers.Dense(hp["hidden"], activation="relu")
        return keras.Sequential([keras.Input((64,)), hidden, keras.layers.Dropout(0.3), keras.layers.Dense(10)])

    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        import keras

        return inputs + keras.random.normal(keras.ops.shape(inputs))


@cache
def shared_noise() -> Any:
    """Make the layer that all experiments of this process share, as one of a module."""
    import keras

    return keras.layers.GaussianNoise(0.3)


class KerasSharedNoise(KerasNoisy):
    """Noise at the inputs by a layer that is no part of the experiment or the model."""

    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        return shared_noise()(super().augment(inputs, hp), training=True)


class KerasSampledScore(FewKeras):
    """A metric by random numbers, which training does not draw."""

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        import keras

        return {"noise": keras.ops.mean(keras.random.normal(keras.ops.shape(outputs)))}


class KerasFragile(KerasNamed):
    """Its worker of rank 1 dies at each of the calls in `deaths`, once."""

    calls = 0

    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        import tensorflow as tf

        if not hp["deaths"] or not os.environ.get("TF_CONFIG"):
            return inputs
        if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0:
            return inputs

        def counted() -> None:
            self.calls += 1
            if self.calls in hp["deaths"]:
                die_once(Path(hp["folder"]) / str(self.calls))

        with tf.control_dependencies([tf.py_function(counted, [], [])]):
            return {name: tf.identity(array) for name, array in inputs.items()}


class KerasOverflowing(FewKeras):
    """Its gradient is not finite in a batch without a sample of class 3, as of fp16, at a finite loss."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        import tensorflow as tf

        flagged = tf.reduce_sum(tf.square(outputs * tf.cast(targets == 3, outputs.dtype)[:, None]))
        return super().loss(outputs, targets) + 0.01 * tf.sqrt(flagged)


class KerasOverflowingSamples(FewKeras):
    """A mean over samples; one of class 3 has no derivative."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        import tensorflow as tf

        squares = tf.square(outputs * tf.cast(targets != 3, outputs.dtype)[:, None])
        return super().loss(outputs, targets) + 0.01 * tf.reduce_mean(tf.sqrt(tf.reduce_sum(squares, axis=1)))


class KerasOverflowingLoss(FewKeras):
    """Loss and gradient of a batch without a sample of class 3 are no numbers."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        import tensorflow as tf

        known = tf.reduce_any(targets == 3)
        return super().loss(outputs, targets) * tf.where(known, tf.ones([], outputs.dtype), float("inf"))


class KerasHopeless(FewKeras):
    """Its gradient is finite in no batch."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        import tensorflow as tf

        return super().loss(outputs, targets) + tf.sqrt(tf.reduce_sum(tf.square(outputs * 0)))


class KerasScaled(KerasMlp):
    """`model` leaves a hyper-parameter with the experiment, which `loss` reads."""

    factor = 1.0

    def model(self, hp: Mapping[str, Any]) -> Any:
        self.factor = hp["factor"]
        return super().model({"hidden": 8})

    def loss(self, outputs: Any, targets: Any) -> Any:
        return self.factor * super().loss(outputs, targets)
