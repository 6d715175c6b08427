"""The private API of Keras that raygpu uses does in this release what raygpu needs."""

from __future__ import annotations

import threading

import pytest


@pytest.fixture(autouse=True)
def needs_keras() -> None:
    """Not imported with this module: TensorFlow takes seconds, in a process that may run none of these tests."""
    pytest.importorskip("keras")


def test_a_thread_draws_from_the_generator_that_it_was_given() -> None:
    from raygpu.training.keras.private_api import global_seed_generator, set_global_seed_generator

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

    from raygpu.training.keras.private_api import untracked

    class Model(keras.Model):
        pass

    model = Model()
    with untracked():
        model.hidden_layer = keras.layers.Dense(3)
    model.seen_layer = keras.layers.Dense(3)
    assert model.hidden_layer not in model._layers
    assert model.seen_layer in model._layers
