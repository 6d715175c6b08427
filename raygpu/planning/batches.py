"""Batches: the order of samples in an epoch, and the bounds of its batches. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

ROUNDS = 6
"""Rounds of the network that shuffles a pass."""


def epoch_order(seed: int, epoch: int, num_samples: int, per_epoch: int | None = None) -> np.ndarray:
    """Return the samples of one epoch in their order, int64 (per_epoch,). Epochs are counted from 1.

    Each pass over the data has an order of its own. per_epoch: samples of an epoch, by default one pass; epochs of
    another number follow each other through the passes, at no cost for the samples of other epochs. The order depends
    on nothing else, so training can go on at any epoch without a saved random state.
    """
    if per_epoch in (None, num_samples):
        return np.random.default_rng([seed, epoch]).permutation(num_samples)
    places = np.arange((epoch - 1) * per_epoch, epoch * per_epoch)
    passes = places // num_samples
    return np.concatenate(
        [
            _shuffled(places[passes == number] % num_samples, num_samples, [seed, int(number) + 1])
            for number in range(passes[0], passes[-1] + 1)
        ]
    )


def _shuffled(places: np.ndarray, count: int, key: Sequence[int]) -> np.ndarray:
    """Return the elements at these places of a random order of `count`, int64, without making the whole order.

    A Feistel network is a permutation of the numbers of 2 b bits; those that it takes out of range go through it again
    (Black and Rogaway, 2002).
    """
    bits = max(1, (int(count - 1).bit_length() + 1) // 2)
    mask, keys = np.uint64(2**bits - 1), np.random.default_rng(key).integers(2**63, size=ROUNDS, dtype=np.uint64)
    elements = places.astype(np.uint64)
    out = np.ones(len(elements), bool)
    while out.any():
        left, right = elements[out] >> np.uint64(bits), elements[out] & mask
        for each in keys:
            left, right = right, left ^ (_mixed(right ^ each) & mask)
        elements[out] = left << np.uint64(bits) | right
        out[out] = elements[out] >= count
    return elements.astype(np.int64)


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Return a hash of 64-bit numbers: the finalizer of SplitMix64 (Steele et al., 2014)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def batch_bounds(num_samples: int, batch_size: int, least: int = 2) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each batch, in order.

    A last batch of fewer than `least` samples is joined to the previous one: BatchNorm cannot train on one sample, and
    no rank on none.
    """
    starts = list(range(0, num_samples, batch_size))
    if len(starts) > 1 and num_samples - starts[-1] < min(least, batch_size):
        starts.pop()
    yield from zip(starts, [*starts[1:], num_samples], strict=True)


EVALUATION_BATCH = 1024
"""Samples of a batch of an evaluation: a device is kept busy, and activations of a whole split are never held at
once."""


def evaluation_bounds(num_samples: int, batch_size: int | None = None) -> list[tuple[int, int]]:
    """Return the start and end of each batch of an evaluation. batch_size: by default EVALUATION_BATCH."""
    return list(batch_bounds(num_samples, batch_size or EVALUATION_BATCH))


def num_batches(num_samples: int, batch_size: int) -> int:
    """Return the number of batches of an epoch, cut as by `batch_bounds`."""
    return sum(1 for _ in batch_bounds(num_samples, batch_size))
