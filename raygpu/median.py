"""The median rule: which trials are so far below the others that they stop (Golovin et al., Google Vizier, 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median


class Median:
    """The rule as Ray Tune's `MedianStoppingRule` applies it, trial by trial in the order in which they come.

    A trial stops whose best score lies below the median of the others' running means up to the same epoch.
    Asked again about a trial, as after a lost worker, it gives the same answer.
    """

    def __init__(self, grace_epochs: int, min_trials: int, *, maximize: bool) -> None:
        self.grace_epochs = grace_epochs
        self.min_trials = min_trials
        self.sign = 1 if maximize else -1
        self._scores: dict[str, dict[int, float]] = {}
        self._stopped: set[tuple[str, int]] = set()

    def decide(self, epoch: int, scores: Sequence[tuple[str, float]]) -> frozenset[str]:
        """Which of these trials stop after this epoch. scores: by trial id, finite."""
        for trial_id, score in scores:
            own = self._scores.setdefault(trial_id, {})
            if epoch in own:
                continue
            own[epoch] = self.sign * score
            if epoch >= self.grace_epochs and self._is_low(trial_id, epoch):
                self._stopped.add((trial_id, epoch))
        return frozenset(trial_id for trial_id, _ in scores if (trial_id, epoch) in self._stopped)

    def _is_low(self, trial_id: str, epoch: int) -> bool:
        means = [
            fmean(score for at, score in own.items() if self.grace_epochs <= at <= epoch)
            for other, own in self._scores.items()
            if other != trial_id and epoch in own
        ]
        return len(means) >= self.min_trials and max(self._scores[trial_id].values()) < median(means)
