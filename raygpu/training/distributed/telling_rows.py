"""The samples with which a loss is looked at: rare values may be masked, or a class of their own."""

from __future__ import annotations

import math

import numpy as np

from raygpu.experiment import Arrays, named, num_samples

VALUES = 64
"""Largest number of distinct target values to include: a mask may leave any of them out."""
LOOKED_AT = 4_000_000
"""Largest number of array elements to search for rare values."""
SEARCHED = 200_000_000
"""Largest number of array elements to search for the smallest and the largest one."""


def telling_rows(inputs: Arrays, targets: Arrays, count: int) -> np.ndarray:
    """Choose samples with rare targets, those of one value side by side, then evenly spaced ones; int64 (count,)."""
    total = num_samples(targets)
    special = [row for array in named(targets).values() for row in _rows_of_values(array, VALUES)]
    special += [row for array in named(inputs).values() if array.dtype.kind in "biu"
                for row in _rows_of_values(array, 2)]  # fmt: skip
    special = list(dict.fromkeys(special))[: max(2, 3 * count // 4)]
    spaced = np.linspace(0, total - 1, min(total, 2 * count)).round().astype(int).tolist()
    spaced = [*spaced[::2], *spaced[1::2], *range(min(total, 2 * count))]
    return np.array(list(dict.fromkeys([*special, *spaced]))[:count])


def _rows_of_values(array: np.ndarray, most: int) -> list[int]:
    """Return two samples with each distinct value: of the smallest value, then of the largest, then of others.

    Of floating-point numbers that all differ: the smallest, the largest, zero, NaN and infinities.
    """
    if array.dtype.kind not in "biuf" or not array.size:
        return []
    width = max(1, array[0].size)
    step = max(1, math.ceil(array.size / LOOKED_AT))
    flat = np.ascontiguousarray(array[::step]).reshape(-1)
    values, firsts = np.unique(flat, return_index=True)
    lasts = len(flat) - 1 - np.unique(flat[::-1], return_index=True)[1]
    if array.dtype.kind == "f" and len(values) > most:
        chosen = np.flatnonzero((values == 0) | ~np.isfinite(values)).tolist()
    elif len(values) > most:
        chosen = np.linspace(0, len(values) - 1, most).round().astype(int).tolist()
    else:
        chosen = list(range(len(values)))
    order = dict.fromkeys([0, len(values) - 1, *chosen])
    rows = [int(place[value]) // width * step for value in order for place in (firsts, lasts)]
    if step > 1 and array.size <= SEARCHED:
        rows = [int(array.argmin()) // width, int(array.argmax()) // width, *rows]
    return rows
