"""The order in which samples are seen: from a seed, the same in every mode."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def epoch_order(seed: int, epoch: int, num_samples: int) -> np.ndarray:
    """The samples of one epoch in their order, int64 (num_samples,). Epochs are counted from 1.

    It depends on nothing else, so training can go on at any epoch without a saved random state.
    """
    return np.random.default_rng([seed, epoch]).permutation(num_samples)


def batch_bounds(num_samples: int, batch_size: int) -> Iterator[tuple[int, int]]:
    """Start and end of each batch. A short last batch is kept, but joined to the one before if it is one sample,
    because BatchNorm cannot train on one."""
    starts = list(range(0, num_samples, batch_size))
    if len(starts) > 1 and batch_size > 1 and num_samples - starts[-1] == 1:
        starts.pop()
    yield from zip(starts, [*starts[1:], num_samples], strict=True)


def num_batches(num_samples: int, batch_size: int) -> int:
    return sum(1 for _ in batch_bounds(num_samples, batch_size))
