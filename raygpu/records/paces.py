"""The pace of a sweep's Tune trials: seconds of an epoch, by what their reports tell. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from raygpu.planning.size_model import ModelSize, predicted_pace

RATIOS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
"""Candidates for the fixed time of an array's epoch, in members' own times."""
PLAN_WEIGHT = 0.2
"""Weight, in epochs, of the plan's fixed time against the one that fits the arrays' measured epochs."""
LATER_RATIO = 2
"""Ratio of Tune trials on running workers to those on workers just started from which the latter are left out."""


@dataclass(slots=True)
class Holder:
    """A Tune trial in its place: a trial alone, or an array."""

    trial_ids: tuple[str, ...]
    began: float
    kind: int
    is_first: bool
    """Whether it has started the worker of its place."""
    heard: float | None = None
    """Moment of its last report."""
    spans: dict[int, list[float]] = field(default_factory=dict)
    """Seconds and epochs between reports, by the number of trials that trained at once."""
    opening: tuple[float | None, int, float] | None = None
    """Seconds of training, epochs and mean width of the first report."""
    prepared_s: float = 0.0
    """Seconds in which the array was made, and its width chosen."""


class SortedPaces:
    """Paces of Tune trials, to be drawn from."""

    def __init__(self, paces: Sequence[float]) -> None:
        """Sort the paces; at least one."""
        self._paces = sorted(paces)
        self.mean = fmean(paces)

    def draw(self, part: float) -> float:
        """Return the pace below which this part, from 0 to 1, of all lies."""
        return self._paces[min(len(self._paces) - 1, int(part * len(self._paces)))]


@dataclass(frozen=True, slots=True)
class Paces:
    """Seconds of an epoch, in members' own times, by kind; and the fixed part of an array's epoch."""

    by_kind: Mapping[int, SortedPaces]
    every: SortedPaces
    own: Mapping[int, float]
    """Pace of each holder, by the identity of its object."""
    fixed: float

    @classmethod
    def of(cls, holders: Sequence[Holder], fixed: float, sizes: Mapping[int, ModelSize]) -> Paces | None:
        """Return the paces of these Tune trials, and of kinds that have not trained yet by their sizes; None without
        any report."""
        if any(max(held.spans, default=1) > 1 for held in holders):
            fixed = _fitted(holders, fixed)
        paces = {id(held): pace for held in holders if (pace := _pace(held, fixed)) is not None}
        if not paces:
            return None
        by_kind: dict[int, list[Holder]] = {}
        for holder in holders:
            if id(holder) in paces:
                by_kind.setdefault(holder.kind, []).append(holder)
        pools = {kind: SortedPaces([paces[id(held)] for held in _later(of)]) for kind, of in by_kind.items()}
        if seen := [(sizes[kind], pool.mean) for kind, pool in pools.items() if kind in sizes and pool.mean > 0]:
            others = {kind: size for kind, size in sizes.items() if kind not in pools}
            pools |= {kind: SortedPaces([predicted_pace(seen, size)]) for kind, size in others.items()}
        every = SortedPaces([paces[id(held)] for of in by_kind.values() for held in _later(of)])
        return cls(pools, every, paces, fixed)

    def of_kind(self, kind: int) -> SortedPaces:
        """Return the paces of a kind; those of all kinds for a kind without any."""
        return self.by_kind.get(kind, self.every)

    def epoch_s(self, pace: float, width: float) -> float:
        """Return the seconds of an epoch of an array of this width."""
        return pace * _cost(width, self.fixed)


def _later(holders: Sequence[Holder]) -> Sequence[Holder]:
    """Return the Tune trials without those of workers that had just started, which train while others still start and
    import; all, until there are enough others."""
    later = [holder for holder in holders if not holder.is_first]
    return later if len(later) >= LATER_RATIO * (len(holders) - len(later)) else holders


def _cost(width: float, fixed: float) -> float:
    return (width + fixed) / (1 + fixed)


def _pace(held: Holder, fixed: float) -> float | None:
    """Return the seconds of an epoch of a trial alone, as far as this Tune trial tells; None before a report."""
    seconds = sum(each for each, _ in held.spans.values())
    cost = sum(epochs * _cost(width, fixed) for width, (_, epochs) in held.spans.items())
    if held.opening is not None and held.opening[0] is not None:
        train_s, epochs, width = held.opening
        seconds, cost = seconds + (train_s or 0.0), cost + epochs * _cost(width, fixed)
    return seconds / cost if cost > 0 else None


def _fitted(holders: Sequence[Holder], fixed: float) -> float:
    """Return the fixed part of an array's epoch under which each array's epochs are the most alike at all its widths;
    the plan's, until an array has become narrower."""
    points = [
        [(width, seconds / epochs, epochs) for width, (seconds, epochs) in holder.spans.items() if seconds > 0]
        for holder in holders
    ]
    points = [of for of in points if len(of) > 1]
    if not points:
        return fixed

    def unlike(ratio: float) -> float:
        """Return how much the paces at different widths differ, in squared logarithms weighted by epochs, and the ratio
        from the plan's."""
        error = PLAN_WEIGHT * math.log((1 + ratio) / (1 + fixed)) ** 2
        for of in points:
            logs = [(math.log(pace / _cost(width, ratio)), weight) for width, pace, weight in of]
            mean = sum(log * weight for log, weight in logs) / sum(weight for _, weight in logs)
            error += sum(weight * (log - mean) ** 2 for log, weight in logs)
        return error

    return min(RATIOS, key=unlike)
