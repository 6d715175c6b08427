"""The best batch of each device, and the split of a batch over unequal ones, from their measured speeds. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from raygpu.batching import split

GAIN = 0.05
"""By which a batch of twice the size has to be faster to count as a gain."""
LESS = 0.8
"""Of a batch that memory does not hold: what is tried next."""
TURNS = 20
"""Of the search for shares that all take the same time."""
Ended = Literal["memory", "gain", "data"]


@dataclass(slots=True)
class Curve:
    """One device's samples/s by its batch, from small to large."""

    rates: dict[int, float] = field(default_factory=dict)
    ended: Ended | None = None
    """Why no larger batch was tried; None while one may be."""

    def tell(self, batch: int, rate: float) -> None:
        """Its speed with this batch. The climb ends after two doublings without a gain."""
        self.rates[batch] = rate
        sizes = sorted(self.rates)
        before = max((self.rates[size] for size in sizes[:-2]), default=0.0)
        if len(sizes) > 2 and max(self.rates[size] for size in sizes[-2:]) < (1 + GAIN) * before:
            self.ended = "gain"

    @property
    def best(self) -> int:
        """The smallest batch that is within GAIN of the fastest. Raises ValueError where nothing was measured."""
        if not self.rates:
            raise ValueError("no batch was measured on this device")
        top = max(self.rates.values())
        return min(size for size, rate in self.rates.items() if rate * (1 + GAIN) >= top)

    @property
    def most(self) -> float:
        """Samples that the device is known to hold, where memory ended the climb; else any number."""
        return max(self.rates) if self.ended == "memory" else float("inf")

    def step_s(self, batch: float) -> float:
        """Seconds for a batch: straight between two measured ones, and on beyond them."""
        sizes = sorted(self.rates)
        times = [size / self.rates[size] for size in sizes]
        if len(sizes) == 1:
            return times[0] * batch / sizes[0]
        above = next((i for i in range(1, len(sizes)) if sizes[i] >= batch), len(sizes) - 1)
        (x0, y0), (x1, y1) = (sizes[above - 1], times[above - 1]), (sizes[above], times[above])
        straight = y0 + (batch - x0) * (y1 - y0) / (x1 - x0)
        return max(straight, 0.1 * y0 * batch / x0)  # noise may have it fall to nothing


@dataclass(frozen=True, slots=True)
class Balanced:
    """A split of a global batch."""

    shares: tuple[int, ...]
    samples_per_s: float
    """Predicted: of all devices, each waiting for the slowest."""

    @property
    def global_batch(self) -> int:
        return sum(self.shares)


def predicted(curves: Sequence[Curve], shares: Sequence[int]) -> Balanced:
    """What this split comes to."""
    slowest = max(curve.step_s(share) for curve, share in zip(curves, shares, strict=True))
    return Balanced(tuple(shares), sum(shares) / slowest)


def balanced(curves: Sequence[Curve], global_batch: int | None = None) -> Balanced:
    """The split with which all devices take the same time for a step.

    global_batch: by default the largest with which no device has more than its best batch.
    Raises ValueError where the devices do not hold the batch.
    """
    if global_batch is None:
        rates = [curve.rates[curve.best] for curve in curves]
        each = min(curve.best / rate for curve, rate in zip(curves, rates, strict=True))
        global_batch = max(len(curves), round(each * sum(rates)))
    most = [curve.most for curve in curves]
    found = predicted(curves, split(global_batch, [max(curve.rates.values()) for curve in curves], most))
    for _ in range(TURNS):
        speeds = [share / curve.step_s(share) for curve, share in zip(curves, found.shares, strict=True)]
        next_one = predicted(curves, split(global_batch, speeds, most))
        if next_one.samples_per_s <= found.samples_per_s:
            break
        found = next_one
    return found


def lowered(shares: Sequence[int]) -> list[int]:
    """After an out-of-memory: all by a fifth. Raises ValueError where there is nothing left to lower."""
    if max(shares) <= 1:
        raise ValueError("a batch of one sample does not fit")
    return [max(1, int(LESS * share)) for share in shares]
