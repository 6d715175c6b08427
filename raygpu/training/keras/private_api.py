"""Private API of Keras 3, all of it that raygpu uses. `tests/training/keras/test_private_api.py` tells when it changes.

Keras has no public way to share one seed generator between threads, or to set an attribute without tracking it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from raygpu.training.keras.quiet_import import keras


def global_seed_generator() -> Any:
    """Return the generator that `keras.random` draws from in this thread; make it if there is none."""
    return keras.src.random.seed_generator.global_seed_generator()


def set_global_seed_generator(generator: Any) -> None:
    """Let `keras.random` draw from a generator in this thread."""
    name = keras.src.random.seed_generator.GLOBAL_SEED_GENERATOR
    keras.src.backend.common.global_state.set_global_attribute(name, generator)


def untracked() -> AbstractContextManager[Any]:
    """Return a context in which attributes of layers and models are set without being tracked as their state."""
    scope: AbstractContextManager[Any] = keras.src.utils.tracking.DotNotTrackScope()
    return scope
