"""The best batch of each device, and the split of a batch over unequal ones, from their measured speeds. Pure.

    groups = alike(curves)                                      # [[0, 1], [2]]: ranks without a proven difference
    split = balance_shares(level_groups(curves, groups), 512)   # equal shares within a group
    speedup(balanced_rates, equal_rates)                        # how much faster balanced shares are, with the spread

Measurements differ by noise, so a difference counts only where the rounds, paired in time, show one: their ratio's
confidence interval (`raygpu.planning.confidence`) excludes equality, and by more than NEGLIGIBLE.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

from raygpu.planning.batch_shares import split_batch
from raygpu.planning.confidence import CONFIDENCE, Interval, interval, ratio

LEAST_GAIN = 0.05
"""Relative speedup that a batch of twice the size needs to count as a gain."""
REDUCTION = 0.8
"""Factor on a batch that does not fit in memory."""
MOST_ITERATIONS = 20
"""Largest number of iterations in the search for shares that all take the same time."""
NEGLIGIBLE = 0.02
"""Relative difference up to which two speeds count as equal: less than a split by whole samples can use."""
LEAST_PAIRS = 3
"""Smallest number of pairs of turns in a comparison of two splits: with fewer, even a clear difference has no narrow
interval."""
LARGEST_PART = 0.1
"""Largest part of the training data in one step: a larger batch leaves fewer than ten steps an epoch."""
Ended = Literal["memory", "gain", "data", "asked"]


@dataclass(slots=True)
class ThroughputCurve:
    """One device's samples/s by its batch, from small to large."""

    rates: dict[int, float] = field(default_factory=dict)
    ended: Ended | None = None
    """Reason why no larger batch was tried; None while one may be."""
    rounds: dict[int, Sequence[float]] = field(default_factory=dict)
    """Samples/s of each round, by batch, in the same order for all devices; the rates are their medians."""

    def tell(self, batch: int, rate: float, rounds: Sequence[float] = ()) -> None:
        """Take in the samples/s with a batch. The climb ends after two doublings without a gain."""
        self.rates[batch] = rate
        if rounds:
            self.rounds[batch] = rounds
        sizes = sorted(self.rates)
        before = max((self.rates[size] for size in sizes[:-2]), default=0.0)
        if len(sizes) > 2 and max(self.rates[size] for size in sizes[-2:]) < (1 + LEAST_GAIN) * before:
            self.ended = "gain"

    @property
    def best(self) -> int:
        """Smallest batch whose speed is within LEAST_GAIN of the fastest. Raises ValueError if nothing was measured."""
        if not self.rates:
            raise ValueError("no batch was measured on this device")
        top = max(self.rates.values())
        return min(size for size, rate in self.rates.items() if rate * (1 + LEAST_GAIN) >= top)

    @property
    def most(self) -> float:
        """Samples that the device is known to hold if memory ended the climb, else infinity."""
        return max(self.rates) if self.ended == "memory" else float("inf")

    def step_s(self, batch: float) -> float:
        """Return the seconds of a step with a batch: linear between two measured batches, and beyond them."""
        sizes = sorted(self.rates)
        times = [size / self.rates[size] for size in sizes]
        if len(sizes) == 1:
            return times[0] * batch / sizes[0]
        above = next((i for i in range(1, len(sizes)) if sizes[i] >= batch), len(sizes) - 1)
        (x0, y0), (x1, y1) = (sizes[above - 1], times[above - 1]), (sizes[above], times[above])
        straight = y0 + (batch - x0) * (y1 - y0) / (x1 - x0)
        return max(straight, 0.1 * y0 * batch / x0)  # noise may have it fall to nothing


def relative(curves: Sequence[ThroughputCurve]) -> list[Interval]:
    """Return each device's speed over the geometric mean of all, from rounds in which all were measured; 1 for a single
    device."""
    speeds = []
    for rank_curve in curves:
        ratios = [
            rank_curve.rounds[batch][place] / math.exp(fmean(math.log(curve.rounds[batch][place]) for curve in curves))
            for batch in rank_curve.rounds
            if all(batch in curve.rounds for curve in curves)
            for place in range(min(len(curve.rounds[batch]) for curve in curves))
        ]
        speeds.append(interval(ratios) if ratios else Interval(1.0, 0.0, math.inf))
    return speeds


def alike(curves: Sequence[ThroughputCurve]) -> list[list[int]]:
    """Group the devices whose speeds do not differ beyond noise, the fastest group first.

    A device joins a group unless its rounds, paired with those of each member, exclude equality. Among many pairs some
    differ by chance, so the confidence is higher with more of them (Bonferroni).
    """
    pairs = max(1, len(curves) * (len(curves) - 1) // 2)
    confidence = 1 - (1 - CONFIDENCE) / pairs
    speeds = relative(curves)
    groups: list[list[int]] = []
    for rank in sorted(range(len(curves)), key=lambda rank: -speeds[rank].middle):
        if groups and not any(differ(curves[member], curves[rank], confidence) for member in groups[-1]):
            groups[-1].append(rank)
        else:
            groups.append([rank])
    return [sorted(group) for group in groups]


def differ(one: ThroughputCurve, other: ThroughputCurve, confidence: float = CONFIDENCE) -> bool:
    """Return whether the rounds of two devices show that one is faster, by more than NEGLIGIBLE."""
    batches = [batch for batch in one.rounds if batch in other.rounds]
    pairs = [pair for batch in batches for pair in zip(one.rounds[batch], other.rounds[batch], strict=False)]
    if not pairs:
        return False
    speed_ratio = ratio([rate for rate, _ in pairs], [its for _, its in pairs], confidence)
    return speed_ratio.low > 1 + NEGLIGIBLE or speed_ratio.high < 1 / (1 + NEGLIGIBLE)


def level_groups(curves: Sequence[ThroughputCurve], groups: Sequence[Sequence[int]]) -> list[ThroughputCurve]:
    """Replace each device's speeds by the mean speeds of its group; memory limits stay each device's own."""
    level_curves = list(curves)
    for group in groups:
        batches = [batch for batch in curves[group[0]].rates if all(batch in curves[rank].rates for rank in group)]
        rates = {batch: math.exp(fmean(math.log(curves[rank].rates[batch]) for rank in group)) for batch in batches}
        for rank in group if rates else ():
            level_rates = {batch: rates.get(batch, rate) for batch, rate in curves[rank].rates.items()}
            level_curves[rank] = ThroughputCurve(level_rates, curves[rank].ended, curves[rank].rounds)
    return level_curves


def speedup(balanced_rates: Sequence[float], equal_rates: Sequence[float]) -> Interval:
    """Return the balanced split's speed over the equal one's. Both were trained by turns, in pairs."""
    return ratio(balanced_rates, equal_rates)


def around(share: int, most: int, least: int = 1) -> list[int]:
    """Return the batches to measure for a device with about this share: half of it, all of it, and twice as much.

    most: samples of the whole batch. least: smallest number of samples on which the model trains.
    """
    return sorted({max(least, size) for size in (share // 2, min(share, most), min(2 * share, most))})


@dataclass(frozen=True, slots=True)
class MeasuredSplit:
    """Shares of a batch, and the speed of a data-parallel training with them, by turns with other shares."""

    shares: tuple[int, ...]
    turns: tuple[tuple[float, ...], ...]
    """Samples/s of each rank, by turn."""

    @property
    def rates(self) -> tuple[float, ...]:
        """Samples/s of all ranks together, by turn."""
        return tuple(sum(turn) for turn in self.turns)

    @property
    def samples_per_s(self) -> float:
        """Median samples/s of all ranks together."""
        return interval(self.rates).middle

    @property
    def by_rank(self) -> tuple[float, ...]:
        """Samples/s of each rank; their sum is that of all."""
        means = [fmean(rates) for rates in zip(*self.turns, strict=True)]
        return tuple(mean * self.samples_per_s / sum(means) for mean in means)


@dataclass(frozen=True, slots=True)
class PredictedSplit:
    """A split of a global batch."""

    shares: tuple[int, ...]
    samples_per_s: float
    """Predicted samples/s of all devices, each waiting for the slowest."""

    @property
    def global_batch(self) -> int:
        """Samples of all shares together."""
        return sum(self.shares)


def predict(curves: Sequence[ThroughputCurve], shares: Sequence[int]) -> PredictedSplit:
    """Return this split with its predicted throughput."""
    slowest = max(curve.step_s(share) for curve, share in zip(curves, shares, strict=True))
    return PredictedSplit(tuple(shares), sum(shares) / slowest)


def balance_shares(curves: Sequence[ThroughputCurve], global_batch: int | None = None) -> PredictedSplit:
    """Return the split with which all devices take the same time for a step.

    global_batch: None for the largest with which no device has more than its best batch.
    Raises ValueError if the devices do not hold the batch.
    """
    if global_batch is None:
        rates = [curve.rates[curve.best] for curve in curves]
        each = min(curve.best / rate for curve, rate in zip(curves, rates, strict=True))
        global_batch = max(len(curves), round(each * sum(rates)))
    most = [curve.most for curve in curves]
    split = predict(curves, split_batch(global_batch, [max(curve.rates.values()) for curve in curves], most))
    for _ in range(MOST_ITERATIONS):
        speeds = [share / curve.step_s(share) for curve, share in zip(curves, split.shares, strict=True)]
        next_one = predict(curves, split_batch(global_batch, speeds, most))
        if next_one.samples_per_s <= split.samples_per_s:
            break
        split = next_one
    return split


@dataclass(frozen=True, slots=True)
class BalanceVerdict:
    """The measurements of a split, and the shares that follow."""

    curves: Sequence[ThroughputCurve]
    groups: Sequence[Sequence[int]]
    """Ranks in groups of equal speed, within noise; empty if a person chose the shares."""
    split: PredictedSplit
    """The shares that were tried, with their predicted throughput."""
    tried: MeasuredSplit
    """The measured speed with the shares that were tried."""
    equal: MeasuredSplit | None
    """The measured speed with equal shares; None if the tried shares are equal, or memory does not hold equal ones."""
    fits: bool = True
    """Whether memory holds equal shares."""
    asked: bool = False
    """Whether a person chose the shares."""

    @property
    def speedup(self) -> Interval | None:
        """Speed with the tried shares over that with equal shares; None without the latter."""
        return None if self.equal is None else speedup(self.tried.rates, self.equal.rates)

    @property
    def shares(self) -> tuple[int, ...]:
        """The tried shares if they are proven faster, were chosen by a person, or alone fit in memory; else equal
        ones."""
        if self.equal is None or self.asked or not self.fits:
            return self.tried.shares
        return self.tried.shares if speedup(self.tried.rates, self.equal.rates).low > 1 else self.equal.shares

    @property
    def is_equal(self) -> bool:
        """Whether the shares are as equal as whole samples can be."""
        return max(self.shares) - min(self.shares) <= 1


def needs_another_pair(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]], most: int) -> bool:
    """Return whether another pair of turns may show that the first split is faster. Each turn: samples/s by rank.

    most: largest number of pairs; LEAST_PAIRS of them are always trained.
    """
    if len(one) < min(LEAST_PAIRS, most):
        return True
    speed_ratio = speedup([sum(turn) for turn in one], [sum(turn) for turn in other])
    return len(one) < most and speed_ratio.middle > 1 and not speed_ratio.excludes(1.0)


def reduce_shares(shares: Sequence[int]) -> list[int]:
    """Reduce all shares by a fifth after an out-of-memory. Raises ValueError if nothing is left to reduce."""
    if max(shares) <= 1:
        raise ValueError("a batch of one sample does not fit")
    return [max(1, int(REDUCTION * share)) for share in shares]
