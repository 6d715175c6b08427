"""The private API of Keras that raygpu uses does in this release what raygpu needs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def needs_keras() -> None:
    """Not imported with this module: TensorFlow takes seconds, in a process that may run none of these tests."""
    pytest.importorskip("keras")


def test_a_thread_draws_from_the_generator_that_it_was_given() -> None:
    from raygpu.training.keras.keras_private_api import global_seed_generator, set_global_seed_generator

    generator = global_seed_generator()
    assert global_seed_generator() is generator
    found: list[object] = []

    def other() -> None:
        found.append(global_seed_generator())
        set_global_seed_generator(generator)
        found.append(global_seed_generator())

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert found[0] is not generator, "each thread has its own; if that has changed, the workaround can go"
    assert found[1] is generator


def test_attributes_are_set_without_being_tracked() -> None:
    import keras

    from raygpu.training.keras.keras_private_api import untracked

    class Model(keras.Model):
        pass

    model = Model()
    with untracked():
        model.hidden_layer = keras.layers.Dense(3)
    model.seen_layer = keras.layers.Dense(3)
    assert model.hidden_layer not in model._layers
    assert model.seen_layer in model._layers


def test_names_are_numbered_from_the_start_and_then_as_before() -> None:
    import keras

    from raygpu.training.keras.keras_private_api import names_from_the_start

    first = keras.layers.Dropout(0.5).name
    with names_from_the_start():
        assert [keras.layers.Dropout(0.5).name for _ in range(2)] == ["dropout", "dropout_1"]
    assert keras.layers.Dropout(0.5).name not in (first, "dropout")


def test_a_moved_variable_keeps_its_value_and_trains() -> None:
    import keras
    import tensorflow as tf

    from raygpu.training.keras.keras_private_api import move_variable

    layer = keras.layers.Dense(2)
    layer.build((None, 3))
    before, kernel = layer.get_weights()[0], layer.kernel._value
    move_variable(layer.kernel, "/CPU:0")
    assert layer.kernel._value is not kernel
    assert (layer.get_weights()[0] == before).all()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.ones((1, 3))))
    assert tape.gradient(loss, layer.trainable_variables)[0].shape == (3, 2)


def test_the_profiler_writes_operations_with_their_names(tmp_path: Path) -> None:
    import tensorflow as tf

    from raygpu.training.keras.keras_private_api import read_profile

    step = tf.function(lambda x: tf.linalg.matmul(x, x, name="product"))
    step(tf.ones((4, 4)))
    tf.profiler.experimental.start(str(tmp_path))
    step(tf.ones((4, 4)))
    tf.profiler.experimental.stop()
    (path,) = tmp_path.rglob("*.xplane.pb")
    names = {meta.name for plane in read_profile(path).planes for meta in plane.event_metadata.values()}
    assert any(name.startswith("product:") for name in names)


def test_masks_and_logits_are_carried_to_another_tensor() -> None:
    import keras
    import tensorflow as tf

    from raygpu.training.keras.keras_private_api import carried

    outputs = keras.layers.Embedding(5, 2, mask_zero=True)(tf.constant([[0, 1]]))
    last = carried(lambda each: each[:, 1:], outputs)
    assert not hasattr(outputs + 1, "_keras_mask"), "if that has changed, the workaround can go"
    assert last._keras_mask.numpy().tolist() == [[True]]
    assert not hasattr(last, "_keras_logits")
    probabilities = keras.activations.softmax(tf.constant([[1.0, 2.0]]))
    joined = carried(lambda *each: tf.concat(each, 0), probabilities, probabilities)
    assert joined._keras_logits.numpy().tolist() == [[1.0, 2.0], [1.0, 2.0]]


def test_seeds_of_new_layers_are_drawn_apart() -> None:
    import random

    import keras

    from raygpu.training.keras.keras_private_api import default_seeds_apart

    before = random.getstate()
    with default_seeds_apart():
        keras.layers.Dropout(0.5)
        keras.layers.Dense(2)
    assert random.getstate() == before
    keras.layers.Dropout(0.5)
    assert random.getstate() != before, "if that has changed, the workaround can go"


def test_the_layers_of_a_model_are_listed_at_every_depth() -> None:
    import keras

    from raygpu.training.keras.keras_private_api import all_layers

    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.parts = [keras.Sequential([keras.layers.BatchNormalization(name="deep")])]

    assert "deep" in [layer.name for layer in all_layers(Model())]


def test_a_variable_that_is_written_to_in_a_branch_is_found_and_those_that_are_read_are_not() -> None:
    import keras
    import tensorflow as tf

    from raygpu.training.keras.keras_private_api import written_handles

    written, read = tf.Variable(1.0), tf.Variable(1.0)
    layer = keras.layers.LSTM(2)
    layer.build((1, 3, 2))

    @tf.function
    def step(values: Any) -> Any:
        outputs = tf.reduce_sum(layer(values))  # a loop reads its variables
        return tf.cond(outputs > 0, lambda: written.assign(outputs), read.value)

    found = written_handles(step.get_concrete_function(tf.TensorSpec([1, 3, 2])))
    assert id(written.handle) in found
    assert not found & {id(each.handle) for each in (read, *(weight.value for weight in layer.weights))}
