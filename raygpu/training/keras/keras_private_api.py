"""Private API of Keras 3, all of it that raygpu uses; `test_keras_private_api.py` tells when it changes.

Keras has no public way to share one seed generator between threads, to draw the seeds of new generators apart from
Python's random numbers, to set an attribute without tracking it, to number names from the start, to list the layers of
a model at every depth, to carry an output's mask and logits over, or to move a built layer's variable to another
device. TensorFlow has none to tell which variables a traced function writes to, or to read what its profiler has
recorded.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from raygpu.training.keras.quiet_import import keras, tf

NAME_COUNTS = "object_name_uids"
"""Global attribute of Keras with the number of objects that have each name."""
KEPT = "_keras_mask", "_keras_logits"
"""Attributes that layers and activations leave at their outputs."""


def mask_of(outputs: Any) -> Any:
    """Return the mask that layers have left at a tensor; None without one."""
    return getattr(outputs, KEPT[0], None)


def global_seed_generator() -> Any:
    """Return the generator that `keras.random` draws from in this thread; make it if there is none."""
    return keras.src.random.seed_generator.global_seed_generator()


def set_global_seed_generator(generator: Any) -> None:
    """Let `keras.random` draw from a generator in this thread."""
    name = keras.src.random.seed_generator.GLOBAL_SEED_GENERATOR
    keras.src.backend.common.global_state.set_global_attribute(name, generator)


@contextmanager
def default_seeds_apart() -> Iterator[None]:
    """Let Keras draw the seeds of layers and generators that are made inside from a generator of its own, not from
    Python's."""
    module = keras.src.random.seed_generator
    python_random = module.python_random
    module.python_random = random.Random(0)
    try:
        yield
    finally:
        module.python_random = python_random


def untracked() -> AbstractContextManager[Any]:
    """Return a context in which attributes of layers and models are set without being tracked as their state."""
    scope: AbstractContextManager[Any] = keras.src.utils.tracking.DotNotTrackScope()
    return scope


@contextmanager
def names_from_the_start() -> Iterator[None]:
    """Number the names that Keras gives to layers as in a fresh process: each model made so has the same names."""
    state = keras.src.backend.common.global_state
    name_counts = state.get_global_attribute(NAME_COUNTS)
    state.set_global_attribute(NAME_COUNTS, defaultdict(int))
    try:
        yield
    finally:
        state.set_global_attribute(NAME_COUNTS, name_counts)


def all_layers(model: Any) -> list[Any]:
    """Return a model and all layers in it, at every depth, those in attributes of the user's own too."""
    return list(model._flatten_layers())


def carried(change: Callable[..., Any], *tensors: Any) -> Any:
    """Return the result of a function of tensors, with what Keras keeps at them: masks and logits, changed as they are.

    Losses and metrics of Keras leave masked samples out, and compute the cross entropy of probabilities from the logits
    that they were made of.
    """
    attributes = keras.src.backend.common.tensor_attributes
    result = change(*tensors)
    for name in KEPT:
        kept_tensors = [attributes.get_tensor_attr(tensor, name) for tensor in tensors]
        if all(each is not None for each in kept_tensors):
            attributes.set_tensor_attr(result, name, change(*kept_tensors))
    return result


def move_variable(variable: Any, device: str) -> None:
    """Move a variable of a built layer to a device, by a new tf.Variable of the same value there."""
    old = variable._value
    with tf.device(device):
        variable._value = tf.Variable(old, trainable=old.trainable, name=old.name.partition(":")[0])


def written_handles(traced: Any) -> set[int]:
    """Return the ids of the handles of the variables that a traced function may write to, in a branch of it too.

    traced: of type `tf.types.experimental.ConcreteFunction`.
    """
    from tensorflow.python.framework.auto_control_deps_utils import get_read_only_resource_input_indices_graph

    read_only, captured = set(get_read_only_resource_input_indices_graph(traced.graph)), traced.captured_inputs
    first = len(traced.inputs) - len(captured)
    return {id(tensor) for place, tensor in enumerate(captured, first) if place not in read_only}


def read_profile(path: Path) -> Any:
    """Return the planes that TensorFlow's profiler has written to a file, an XSpace."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    space.ParseFromString(path.read_bytes())
    return space
