"""Test whether a sample of a batch is made of others of it too, as one that is mixed, or filled up to their length."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from raygpu.config.generators import random_state_kept

MIXED = 16
"""Largest number of samples in a test of whether samples of a batch depend on each other."""
BESIDE = 4
"""Number of groups of samples beside which a few are collated."""


def depends_on_others(made: Callable[[np.ndarray], Sequence[np.ndarray]], total: int, groups: int = 2) -> bool:
    """Return whether the first samples of a batch are made another way beside others; False if that cannot be tested.

    made: returns arrays of the samples with these indices, all of them from the same state and random numbers. total:
    number of samples that there are. groups: groups of samples beside which a few are made.
    """
    count = min(MIXED // 3, total // (groups + 1))
    if count < 1:
        return False
    rows = np.arange(count)
    try:
        with random_state_kept():
            one, again, *others = (
                [array[:count] for array in made(np.concatenate([rows, rows + count * beside]))]
                for beside in (1, *range(1, groups + 1))
            )
    except Exception:  # noqa: BLE001 - it shows in the training
        return False
    return _alike(one, again) and not all(_alike(one, other) for other in others)


def collated_with_others(made: Callable[[np.ndarray], Sequence[np.ndarray]], total: int) -> bool:
    """Return whether samples are collated another way beside others: a few at once, and some one by one, as those of a
    few may be filled up to one length by the longest of them. See `depends_on_others`."""

    def differ(first: int, number: int) -> bool:
        """Return whether some of these samples, which begin with sample `first`, do."""
        return depends_on_others(lambda rows: made(rows + first), min(number, total - first), BESIDE)

    each = BESIDE + 1
    return differ(0, total) or any(differ(first, each) for first in (0, each, 2 * each))


def _alike(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> bool:
    """Return whether arrays are equal, as far as both reach: samples may be filled up to another length."""
    for each, another in zip(one, other, strict=True):
        both = tuple(slice(min(sizes)) for sizes in zip(each.shape, another.shape, strict=True))
        if not np.allclose(each[both], another[both], equal_nan=True):
            return False
    return True
