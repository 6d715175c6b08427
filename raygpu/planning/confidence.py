"""The spread of repeated measurements: a median with its confidence interval, of rates and of paired ratios. Pure.

    gain = ratio(rates, references)     # Interval(middle=1.7, low=1.5, high=1.9)
    gain.excludes(1.0)                  # whether the rounds show a difference

Rates are positive and their disturbances multiply, so all is computed on logarithms. With enough values (six for 95 %),
it is the median's interval by order statistics, which holds for every distribution, heavy tails included (J.-Y. Le
Boudec, Performance Evaluation of Computer and Communication Systems, 2010, theorem 2.1). With fewer values there is
none; Student's t on the logarithms takes its place, which is too wide, not too narrow, under heavy tails (Y. Benjamini,
Is the t test really conservative when the parent distribution is long-tailed?, JASA 78, 1983).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A positive quantity that was measured several times."""

    middle: float
    low: float
    high: float

    @classmethod
    def exactly(cls, value: float) -> Interval:
        """Return a quantity without spread, such as the gain of one training over itself."""
        return cls(value, value, value)

    def excludes(self, value: float) -> bool:
        """Return whether the measurements show that the quantity is not `value`."""
        return not self.low <= value <= self.high

    @property
    def width(self) -> float:
        """Upper end over lower end; infinite if a single measurement shows no spread."""
        return self.high / self.low if self.low > 0 else math.inf

    def over(self, other: Interval) -> Interval:
        """Return the ratio to an independently measured quantity: relative errors add in quadrature, on logarithms."""
        middle = self.middle / other.middle
        if math.isinf(self.width) or math.isinf(other.width):
            return Interval(middle, 0.0, math.inf)
        down = math.hypot(math.log(self.middle / self.low), math.log(other.high / other.middle))
        up = math.hypot(math.log(self.high / self.middle), math.log(other.middle / other.low))
        return Interval(middle, middle * math.exp(-down), middle * math.exp(up))

    def __str__(self) -> str:
        return f"{self.middle:.3g}{spread_text(self.low, self.high)}"


def spread_text(low: float, high: float, number: str = "{:.3g}") -> str:
    """Return ` (1.4 to 1.9)`, or ` (spread not known)` for a single measurement."""
    if not 0 < low <= high < math.inf:
        return " (spread not known)"
    return f" ({number.format(low)} to {number.format(high)})"


def interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return the median of positive values with its confidence interval. Raises ValueError without values."""
    if not values or min(values) <= 0 or not all(map(math.isfinite, values)):
        raise ValueError(f"an interval needs positive values, not {list(values)}")
    logs = sorted(math.log(value) for value in values)
    middle = median(logs)
    if len(logs) == 1:
        return Interval(math.exp(middle), 0.0, math.inf)
    if _coverage(0, len(logs)) >= confidence:
        outside = _outside(len(logs), confidence)
        low, high = logs[outside], logs[-1 - outside]
    else:
        from scipy.special import stdtrit  # a quarter of a second, which a command without measurements has no use for

        half = float(stdtrit(len(logs) - 1, (1 + confidence) / 2)) * stdev(logs) / math.sqrt(len(logs))
        low, high = fmean(logs) - half, fmean(logs) + half
    return Interval(math.exp(middle), math.exp(min(low, middle)), math.exp(max(high, middle)))


def ratio(rates: Sequence[float], others: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return the ratio of two rates that were measured round by round in pairs, one soon after the other.

    A disturbance of a whole round affects both rates and cancels in the pair's ratio.
    """
    return interval([rate / other for rate, other in zip(rates, others, strict=True)], confidence)


def _outside(count: int, confidence: float) -> int:
    """Return the number of values to leave out at either end: as many as the confidence allows."""
    outside = 0
    while _coverage(outside + 1, count) >= confidence:
        outside += 1
    return outside


def _coverage(outside: int, count: int) -> float:
    """Return the probability that the median lies within the values, so many at either end left out."""
    from scipy.special import bdtr

    return 1 - 2 * float(bdtr(outside, count, 0.5))
