"""The median rule: stop trials that are far below the others (Golovin et al., Google Vizier, 2017)."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median


class Median:
    """The median stopping rule, as Ray Tune's `MedianStoppingRule` applies it: trial by trial in the order of arrival.

    A trial stops whose best score lies below the median of the others' running means up to the same epoch. Asked again
    about a trial, as after a lost worker, it gives the same answer.
    """

    def __init__(self, grace_epochs: int, min_trials: int, *, maximize: bool) -> None:
        self.grace_epochs = grace_epochs
        self.min_trials = min_trials
        self.sign = 1 if maximize else -1
        self._trials: dict[str, _Trial] = {}
        self._means: dict[int, list[float]] = {}
        """Running means of all trials that have reached an epoch, sorted."""
        self._stopped: set[tuple[str, int]] = set()

    def decide(self, epoch: int, scores: Sequence[tuple[str, float]]) -> frozenset[str]:
        """Return the trials, among these, that stop after this epoch. scores: by trial id, finite."""
        for trial_id, score in scores:
            own = self._trials.setdefault(trial_id, _Trial())
            if epoch in own.epochs:
                continue
            own.epochs.add(epoch)
            own.best = max(own.best, self.sign * score)
            if epoch < self.grace_epochs:
                continue
            own.scores.append(self.sign * score)
            others = self._means.setdefault(epoch, [])
            if len(others) >= self.min_trials and own.best < median(others):
                self._stopped.add((trial_id, epoch))
            insort(others, fmean(own.scores))
        return frozenset(trial_id for trial_id, _ in scores if (trial_id, epoch) in self._stopped)

    def forget(self, trial_ids: Iterable[str]) -> None:
        """Remove trials whose scores were wrong; they report again."""
        for trial_id in set(trial_ids) & self._trials.keys():
            own = self._trials.pop(trial_id)
            epochs = sorted(epoch for epoch in own.epochs if epoch >= self.grace_epochs)
            for count, epoch in enumerate(epochs, start=1):
                self._means[epoch].remove(fmean(own.scores[:count]))
            self._stopped -= {(trial_id, epoch) for epoch in epochs}


@dataclass(slots=True)
class _Trial:
    epochs: set[int] = field(default_factory=set)
    best: float = -math.inf
    scores: list[float] = field(default_factory=list)
    """Scores from epoch `grace_epochs` on."""
