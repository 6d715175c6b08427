"""Keras on TensorFlow, imported without the log lines that TensorFlow writes before it reads any setting.

from raygpu.training.keras.quiet_import import keras, tf
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _no_stderr() -> Iterator[None]:
    """Discard output of C and C++ code to standard error; exceptions are not affected."""
    stderr_copy = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(stderr_copy, 2)
        os.close(nowhere)
        os.close(stderr_copy)


# Both are read when they are imported. "3" leaves TensorFlow's own errors to the exceptions that it raises.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

with _no_stderr():
    import keras
    import tensorflow as tf

__all__ = ["keras", "tf"]
