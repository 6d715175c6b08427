"""The gradient noise scale, from gradients of small and of large batches. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

WINDOW = 64
"""Number of latest estimates in a noise scale."""


@dataclass(frozen=True, slots=True)
class NoiseScale:
    """The simple gradient noise scale, in samples, and its band: of one standard error either way."""

    samples: float
    low: float
    high: float


@dataclass(slots=True)
class NoiseEstimator:
    """The gradient noise scale tr(S) / |G|^2 from gradients of small and of large batches.

    A batch's mean gradient has E|g|^2 = |G|^2 + tr(S) / samples, so two sizes tell both. S. McCandlish et al., An
    Empirical Model of Large-Batch Training (2018), appendix A.1. Where a batch is much smaller than the noise scale,
    more samples shorten the training in proportion; where it is much larger, they hardly shorten it.
    """

    _estimates: list[tuple[float, float]] = field(default_factory=list)

    def add(self, sizes: Sequence[int], squares: Sequence[float], whole: float) -> None:
        """Take in one step: |g|^2 of each rank's part, of that many samples, and of the whole batch."""
        if len(sizes) < 2:
            return
        # Of unequal parts E|g_i|^2 differs: their mean is that of one part of the harmonic mean size.
        small, large = 1 / fmean(1 / size for size in sizes), sum(sizes)
        square = fmean(squares)
        signal = (large * whole - small * square) / (large - small)
        noise = (square - whole) / (1 / small - 1 / large)
        self._estimates = [*self._estimates[1 - WINDOW :], (signal, noise)]

    def scale(self) -> NoiseScale | None:
        """Return the noise scale by the latest estimates; None if they are fewer than 8, or the gradient is lost in the
        noise.

        Single estimates are far off, and their ratios more so: the scale is the ratio of the means, its error by the
        jackknife.
        """
        count = len(self._estimates)
        if count < 8:
            return None
        signal, noise = (sum(column) for column in zip(*self._estimates, strict=True))
        without = [(signal - g, noise - s) for g, s in self._estimates]
        if signal <= 0 or noise <= 0 or any(g <= 0 for g, _ in without):
            return None
        left_out = [s / g for g, s in without]
        mean = fmean(left_out)
        error = math.sqrt((count - 1) / count * sum((value - mean) ** 2 for value in left_out))
        value = noise / signal
        return NoiseScale(value, max(0.0, value - error), value + error)
