"""The pace of trials whose kind has not trained yet, from the sizes of the kinds that have. Pure.

A step costs a fixed time, its launches, and a time that grows with the model's parameters and the batch. So the time of
an epoch is a * (1 / batch size) + b * parameters, for the same number of samples, with a and b not below 0. They are
fitted to the kinds seen so far, by least squares of the relative errors. While one kind alone is seen, three quarters
of its time count as launches, as with the small models that raygpu packs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LAUNCH_RATIO = 3.0
"""Assumed ratio of kernel-launch to arithmetic time while only one model size has been measured."""
LAUNCH_RATIO_WEIGHT = 0.05
"""Weight of the assumed ratio in the fit; a measured model size has weight 1."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The size of a kind of trial."""

    parameters: float
    """Number of the model's parameters."""
    batch: float
    """Samples of a batch."""


def predicted_pace(seen: Sequence[tuple[ModelSize, float]], size: ModelSize) -> float:
    """Return the time of an epoch of a kind of this size. seen: at least one other kind, with its time."""
    rows = [((1 / each.batch) / pace, each.parameters / pace, 1.0) for each, pace in seen]
    mean = tuple(sum(row[place] for row in rows) / len(rows) for place in (0, 1))
    rows.append((LAUNCH_RATIO_WEIGHT * mean[0], -LAUNCH_RATIO_WEIGHT * LAUNCH_RATIO * mean[1], 0.0))
    a, b = _fitted(rows)
    return a / size.batch + b * size.parameters


def _fitted(rows: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Return the least squares of a * x + b * y = z over the rows (x, y, z), with a and b not below 0."""
    xx, yy, xy = (sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (1, 1), (0, 1)))
    xz, yz = (sum(row[i] * row[2] for row in rows) for i in (0, 1))
    determinant = xx * yy - xy * xy
    a, b = (xz * yy - yz * xy) / determinant, (yz * xx - xz * xy) / determinant
    if a < 0:
        return 0.0, yz / yy
    return (xz / xx, 0.0) if b < 0 else (a, b)
