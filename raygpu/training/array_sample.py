"""Samples of large arrays and tensors, by which their contents are compared."""

from __future__ import annotations

from typing import Any

LARGE = 2**20
"""Bytes of an array or a text above which only a sample of it is compared."""
SAMPLED = 4096
"""Largest number of elements of such a sample."""


def spread(array: Any) -> Any:
    """Return elements of an array or tensor that are spread over all of its axes: a view, whatever the strides."""
    left, steps = SAMPLED, [slice(None)] * array.ndim
    axes = sorted(range(array.ndim), key=lambda axis: array.shape[axis])
    for place, axis in enumerate(axes):
        length = array.shape[axis]
        kept = max(1, min(length, round(left ** (1 / (len(axes) - place)))))
        steps[axis] = slice(None, None, max(1, -(-length // kept)))
        left = max(1, left // kept)
    return array[tuple(steps)]
