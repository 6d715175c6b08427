"""Batches: the order of samples, the split of a batch over unequal devices, and the gradient noise scale."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np

MOVED = 0.05
"""Relative change of a device's speed above which the split of a batch moves."""
BEHIND = 0.02
"""Share of the mean step time by which a device may lag; a longer lag moves the split too."""
NEW = 0.3
"""Weight of the latest measurement of a speed, in the average of all."""
FAR = 0.2
"""Relative distance from the averaged speed: two measurements in turn that are both farther off, to the same side,
replace the average."""
ROUNDS = 6
"""Rounds of the network that shuffles a pass."""
WINDOW = 64
"""Number of latest estimates in a noise scale."""


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
    found = places.astype(np.uint64)
    out = np.ones(len(found), bool)
    while out.any():
        left, right = found[out] >> np.uint64(bits), found[out] & mask
        for each in keys:
            left, right = right, left ^ (_mixed(right ^ each) & mask)
        found[out] = left << np.uint64(bits) | right
        out[out] = found[out] >= count
    return found.astype(np.int64)


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


def num_batches(num_samples: int, batch_size: int, least: int = 2) -> int:
    """Return the number of batches of an epoch, cut as by `batch_bounds`."""
    return sum(1 for _ in batch_bounds(num_samples, batch_size, least))


def split_batch(total: int, ratios: Sequence[float], most: Sequence[float] | None = None) -> list[int]:
    """Split the samples of a batch over devices in these ratios, by largest remainder, so that they add up to `total`.

    768:560 of 100 is 58 and 42. Each device gets one sample at least. most: largest share of each device; the others
    get the rest. Raises ValueError if there are fewer samples than devices, or more than all can hold.
    """
    if total < len(ratios):
        raise ValueError(f"{total} samples for {len(ratios)} devices; each needs one at least")
    limits = [math.inf] * len(ratios) if most is None else most
    room = [limit if limit == math.inf else max(1, math.floor(limit)) for limit in limits]
    if sum(room) < total:
        raise ValueError(f"{total} samples, and the devices hold {sum(room):g}")
    found = _largest_remainder(total, ratios)
    others = len(ratios) - 1
    settled = {i: int(min(room[i], total - others)) for i, n in enumerate(found) if n > room[i]}
    settled = settled or {i: 1 for i, n in enumerate(found) if n < 1}
    if not settled:
        return found
    free = [i for i in range(len(ratios)) if i not in settled]
    if free:
        rest = split_batch(total - sum(settled.values()), [ratios[i] for i in free], [room[i] for i in free])
        settled |= dict(zip(free, rest, strict=True))
    return [settled[i] for i in range(len(ratios))]


def _largest_remainder(total: int, ratios: Sequence[float]) -> list[int]:
    exact = [total * ratio / sum(ratios) for ratio in ratios]
    found = [math.floor(share) for share in exact]
    order = sorted(range(len(ratios)), key=lambda i: (found[i] - exact[i], i))
    for i in order[: total - sum(found)]:
        found[i] += 1
    return found


def parts(count: int, number: int) -> list[int]:
    """Cut `count` samples into `number` parts, or as many as there are samples, as equal as possible; larger ones
    first."""
    number = min(count, number)
    return [count // number + (i < count % number) for i in range(number)]


@dataclass(slots=True)
class ShareBalancer:
    """The split of a batch over devices by their measured speed, moved when a speed changes.

    A device's time for its share is a cost of its own beside one for each sample, so its speed depends on its share;
    splitting by the speeds at the last split, again and again, ends where all devices take the same time.
    """

    ratios: list[float]
    most: list[float] = field(default_factory=list)
    """Samples of a batch that each device can hold; empty if unknown."""
    made_by: list[float] = field(default_factory=list)
    """Samples/s of each device at the present split; empty before the first measurement."""
    _smooth: list[float] = field(default_factory=list)
    """Seconds a sample, averaged over the latest measurements: a single one may be far off."""
    _last: list[float] = field(default_factory=list)
    _told: int = 0

    def split(self, total: int) -> list[int]:
        """Split a batch of `total` samples by the present ratios."""
        # Limits are told with a margin: where they leave no room for what is trained already, they do not hold.
        room = sum(max(1, most if most == math.inf else math.floor(most)) for most in self.most)
        return split_batch(total, self.ratios, self.most if room >= total else None)

    def tell(self, shares: Sequence[int], rates: Sequence[float]) -> bool:
        """Take in the devices' samples/s with these shares of a batch; return whether the split moved."""
        self._average([1 / rate for rate in rates])
        smooth = [1 / each for each in self._smooth]
        changed = [abs(now / then - 1) for now, then in zip(smooth, self.made_by or smooth, strict=True)]
        steps = [share * each for share, each in zip(shares, self._smooth, strict=True)]
        if self.made_by and max(changed) <= MOVED and max(steps) <= (1 + BEHIND) * fmean(steps):
            return False
        self.ratios, self.made_by = smooth, smooth
        return True

    def _average(self, seconds: list[float]) -> None:
        """Take in the seconds a sample of each device."""
        last, self._last = self._last or seconds, seconds
        before = self._smooth or seconds
        self._told += 1
        if any(
            min(now, then) > (1 + FAR) * old or max(now, then) < (1 - FAR) * old
            for now, then, old in zip(seconds, last, before, strict=True)
        ):  # twice: no chance, but another speed
            self._smooth, self._told = [fmean(pair) for pair in zip(seconds, last, strict=True)], 2
            return
        new = max(NEW, 1 / self._told)
        self._smooth = [old + new * (now - old) for old, now in zip(before, seconds, strict=True)]


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
