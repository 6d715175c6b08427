"""Random numbers in the place of a Keras model's outputs: see `raygpu.training.random_outputs`."""

from __future__ import annotations

from typing import Any

import numpy as np

from raygpu.training.keras.quiet_import import keras, tf
from raygpu.training.random_outputs import random_output


def random_outputs(outputs: Any, seed: int) -> Any:
    """Return outputs of the same structure, shapes and dtypes, without masks and logits."""
    return keras.tree.map_structure(lambda leaf: tf.constant(random_output(np.asarray(leaf), seed)), outputs)
