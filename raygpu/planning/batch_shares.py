"""The split of a batch over devices: by ratios, and by measured speeds that change. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

SPEED_CHANGE = 0.05
"""Relative change of a device's speed above which the split is recomputed."""
LAG = 0.02
"""Lag behind the mean step time, as a share of it, above which the split is recomputed."""
LATEST_WEIGHT = 0.3
"""Weight of the latest measurement of a speed in the running average."""
SPEED_JUMP = 0.2
"""Two consecutive measurements that differ from the average by more than this, in the same direction, replace it."""


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
    shares = _largest_remainder(total, ratios)
    others = len(ratios) - 1
    settled = {i: int(min(room[i], total - others)) for i, n in enumerate(shares) if n > room[i]}
    settled = settled or {i: 1 for i, n in enumerate(shares) if n < 1}
    if not settled:
        return shares
    free = [i for i in range(len(ratios)) if i not in settled]
    if free:
        rest = split_batch(total - sum(settled.values()), [ratios[i] for i in free], [room[i] for i in free])
        settled |= dict(zip(free, rest, strict=True))
    return [settled[i] for i in range(len(ratios))]


def with_least(shares: Sequence[int], least: int) -> list[int]:
    """Move samples from the largest shares to those below `least`. Raises ValueError if there are too few samples."""
    shares = list(shares)
    while min(shares) < least:
        largest = max(range(len(shares)), key=shares.__getitem__)
        if shares[largest] <= least:
            raise ValueError(f"{sum(shares)} samples for {len(shares)} devices; each needs {least} at least")
        shares[shares.index(min(shares))] += 1
        shares[largest] -= 1
    return shares


def _largest_remainder(total: int, ratios: Sequence[float]) -> list[int]:
    exact = [total * ratio / sum(ratios) for ratio in ratios]
    shares = [math.floor(share) for share in exact]
    order = sorted(range(len(ratios)), key=lambda i: (shares[i] - exact[i], i))
    for i in order[: total - sum(shares)]:
        shares[i] += 1
    return shares


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
        # Memory limits are cautious: they are ignored where the present batch exceeds their sum, since it fits.
        room = sum(max(1, most if most == math.inf else math.floor(most)) for most in self.most)
        return split_batch(total, self.ratios, self.most if room >= total else None)

    def tell(self, shares: Sequence[int], rates: Sequence[float]) -> bool:
        """Take in the devices' samples/s with these shares of a batch; return whether the split moved."""
        self._average([1 / rate for rate in rates])
        smooth = [1 / each for each in self._smooth]
        changed = [abs(now / then - 1) for now, then in zip(smooth, self.made_by or smooth, strict=True)]
        steps = [share * each for share, each in zip(shares, self._smooth, strict=True)]
        if self.made_by and max(changed) <= SPEED_CHANGE and max(steps) <= (1 + LAG) * fmean(steps):
            return False
        self.ratios, self.made_by = smooth, smooth
        return True

    def _average(self, seconds: list[float]) -> None:
        """Take in the seconds a sample of each device."""
        last, self._last = self._last or seconds, seconds
        before = self._smooth or seconds
        self._told += 1
        if any(
            min(now, then) > (1 + SPEED_JUMP) * old or max(now, then) < (1 - SPEED_JUMP) * old
            for now, then, old in zip(seconds, last, before, strict=True)
        ):  # twice: the speed has changed
            self._smooth, self._told = [fmean(pair) for pair in zip(seconds, last, strict=True)], 2
            return
        new = max(LATEST_WEIGHT, 1 / self._told)
        self._smooth = [old + new * (now - old) for old, now in zip(before, seconds, strict=True)]
