"""Random numbers in the place of a model's outputs: a score depends on outputs and targets alone, and those of an
untrained model may hide how, as where it predicts one class for all samples. Pure."""

from __future__ import annotations

import numpy as np

SEEDS = range(4)
"""Seeds of the outputs that are tried."""


def random_output(output: np.ndarray, seed: int) -> np.ndarray:
    """Return an array of the shape and the dtype of an output: of normal numbers, or for whole numbers and truth values
    the output's own samples in a random order."""
    draw = np.random.default_rng([seed, output.size])
    if output.dtype.kind in "biu":
        return draw.permutation(output)
    if output.dtype in (np.float32, np.float64):
        return draw.standard_normal(output.shape, output.dtype.type)
    numbers = draw.normal(size=output.shape)
    return (numbers if output.dtype.kind == "f" else numbers + 1j * draw.normal(size=output.shape)).astype(output.dtype)
