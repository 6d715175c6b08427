"""Successive halving: the epochs at which trials are compared, and the rule by which they survive."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Sequence


def rungs(grace_epochs: float, reduction: float, max_epochs: int) -> list[int]:
    """Return the epochs below `max_epochs` at which losers are dropped: grace_epochs x reduction^k, rounded up.

    ASHA, Li et al., MLSys 2020, with no further brackets (s = 0).
    """
    epochs: list[int] = []
    rung = float(grace_epochs)
    while math.ceil(rung - 1e-9) < max_epochs:
        epochs.append(math.ceil(rung - 1e-9))
        rung *= reduction
    return sorted(set(epochs))


class Halving:
    """ASHA's rule as Ray Tune's `ASHAScheduler` applies it, trial by trial in the order of their arrival.

    A trial at a rung is stopped if its score lies below the best 1/reduction of those that were there before it. Asked
    again about a trial, as after a lost worker, it gives the same answer; to another score a new one, without what the
    trial had at this rung and later.
    """

    at_rungs = True

    def __init__(self, grace_epochs: float, reduction: float, max_epochs: int, *, maximize: bool) -> None:
        self.quantile = (1 - 1 / reduction) * 100 / 100  # as rounded on the way through numpy's percentiles
        self.sign = 1 if maximize else -1
        epochs = rungs(min(grace_epochs, max_epochs), reduction, max_epochs)
        self._sorted: dict[int, list[float]] = {rung: [] for rung in epochs}
        self._stays: dict[int, dict[str, bool]] = {rung: {} for rung in epochs}
        self._values: dict[int, dict[str, float]] = {rung: {} for rung in epochs}

    def decide(self, epoch: int, scores: Sequence[tuple[str, float]]) -> frozenset[str]:
        """Return the trials, among these, that stop after this epoch. scores: by trial id, finite."""
        if epoch not in self._stays:
            return frozenset()
        stays, values = self._stays[epoch], self._sorted[epoch]
        for trial_id, score in scores:
            value = self.sign * score
            if self._values[epoch].get(trial_id, value) != value:
                self.forget([trial_id], since=epoch)
            if trial_id not in stays:
                stays[trial_id] = not values or value >= _quantile(values, self.quantile)
                insort(values, value)
                self._values[epoch][trial_id] = value
        return frozenset(trial_id for trial_id, _ in scores if not stays[trial_id])

    def forget(self, trial_ids: Iterable[str], since: int = 0) -> None:
        """Remove scores, from an epoch on, of trials that report again."""
        for trial_id in trial_ids:
            for rung, values in self._values.items():
                if rung >= since and trial_id in values:
                    self._sorted[rung].remove(values.pop(trial_id))
                    del self._stays[rung][trial_id]


def _quantile(ordered: Sequence[float], q: float) -> float:
    """Return a quantile by linear interpolation, equal to NumPy's to the last bit: equal scores are compared with
    it."""
    place = (len(ordered) - 1) * q
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    part, step = place - low, ordered[high] - ordered[low]
    return ordered[low] + step * part if part < 0.5 else ordered[high] - step * (1 - part)
