"""A Keras model over several devices by one call: the same training as on one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from experiments.benchmarks.ranks import on_keras_ranks
from tests.models import few


def network(keras: Any, *, named: bool = False) -> Any:
    keras.utils.set_random_seed(1)
    if not named:
        layers = [keras.layers.Dense(16, activation="relu"), keras.layers.Dense(10)]
        return keras.Sequential([keras.Input((64,)), *layers])
    inputs = {name: keras.Input((64,), name=name) for name in ("a", "b")}
    both = keras.layers.Concatenate()([inputs["a"], inputs["b"]])
    return keras.Model(inputs, {"digit": keras.layers.Dense(10, name="digit")(both)})


def recorder(keras: Any, placed: list[str]) -> Any:
    """A layer that changes nothing, and notes where it runs."""

    class Recorder(keras.layers.Layer):  # type: ignore[misc]
        def call(self, inputs: Any) -> Any:
            outputs = 1.0 * inputs
            placed.append(getattr(outputs, "device", ""))
            return outputs

    return Recorder()


def fitted(ranks: Any) -> Any:
    """Weights after two epochs by `fit` of the model alone and over two devices, and the sizes of the parts."""
    import raygpu
    from raygpu.training.quiet_keras import keras, tf

    keras.config.set_floatx("float64")
    splits, found, placed = few(167), {}, []
    for name in ("alone", "sliced"):
        model = network(keras)
        whole = model
        if name == "sliced":
            model.add(recorder(keras, placed))
            whole = raygpu.multi_gpu_model(model, gpus=[0, 1], ratios=[3, 2])
            assert whole._split(np.int32(100)).tolist() == [60, 40]
            assert whole._split(np.int32(1)).tolist() == [1, 0]
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        whole.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), loss=loss)
        whole.fit(splits.train_inputs, splits.train_targets, batch_size=50, epochs=2, shuffle=False, verbose=0)
        found[name] = np.concatenate([weight.ravel() for weight in model.get_weights()])
    norm = keras.Sequential([keras.Input((64,)), keras.layers.BatchNormalization(), keras.layers.Dense(10)])
    outputs = raygpu.multi_gpu_model(norm, gpus=2)(splits.train_inputs[:1], training=True)
    assert outputs.shape == (1, 10)
    assert all(np.isfinite(weight).all() for weight in norm.get_weights())
    named = network(keras, named=True)
    inputs = {"a": tf.ones((5, 64)), "b": tf.zeros((5, 64))}
    outputs = raygpu.multi_gpu_model(named, gpus=2, ratios=[4, 1])(inputs)
    same = np.allclose(outputs["digit"], named(inputs)["digit"])
    return found, sorted({str(device)[-5:] for device in placed if device}), same


def test_the_sliced_model_learns_what_the_model_alone_does() -> None:
    """167 = 3 x 50 + 17."""
    found, devices, same = on_keras_ranks(1, fitted, local=2)[0]
    assert np.linalg.norm(found["sliced"] - found["alone"]) <= 1e-12 * np.linalg.norm(found["alone"])
    assert devices == ["CPU:0", "CPU:1"]
    assert same


@pytest.mark.parametrize(
    ("gpus", "ratios", "fault"),
    [
        ([0, 9], None, r"gpus: read 9; TensorFlow sees \d+ [CG]PU device"),
        ([0], [1, 2], r"ratios: read \[1.0, 2.0\], 2 numbers for 1 GPUs"),
        ([0], [0], r"ratios: read \[0.0\]; allowed: numbers above 0"),
        (0, None, "gpus: read 0; one is needed at least"),
    ],
)
def test_what_cannot_be(gpus: Any, ratios: Any, fault: str) -> None:
    import raygpu
    from raygpu.training.quiet_keras import keras

    with pytest.raises(ValueError, match=fault):
        raygpu.multi_gpu_model(network(keras), gpus, ratios)
