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
    about a trial, as after a lost worker, it gives the same answer; to another score a new one, without what the trial
    had at this epoch and later.
    """

    at_rungs = False

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
            trial, value = self._trials.setdefault(trial_id, _Trial()), self.sign * score
            if trial.scores.get(epoch, value) != value:
                self._forget(trial_id, since=epoch)
            if epoch in trial.scores:
                continue
            trial.scores[epoch] = value
            trial.best = max(trial.best, value)
            if epoch < self.grace_epochs:
                continue
            trial.later.append(value)
            others = self._means.setdefault(epoch, [])
            if len(others) >= self.min_trials and trial.best < median(others):
                self._stopped.add((trial_id, epoch))
            insort(others, fmean(trial.later))
        return frozenset(trial_id for trial_id, _ in scores if (trial_id, epoch) in self._stopped)

    def forget(self, trial_ids: Iterable[str]) -> None:
        """Remove trials whose scores were wrong; they report again."""
        for trial_id in set(trial_ids) & self._trials.keys():
            self._forget(trial_id, since=0)
            del self._trials[trial_id]

    def _forget(self, trial_id: str, since: int) -> None:
        """Remove a trial's scores from an epoch on."""
        trial = self._trials[trial_id]
        compared = sorted(epoch for epoch in trial.scores if epoch >= self.grace_epochs)
        for count, epoch in enumerate(compared, start=1):
            if epoch >= since:
                self._means[epoch].remove(fmean(trial.later[:count]))
                self._stopped.discard((trial_id, epoch))
        trial.scores = {epoch: value for epoch, value in trial.scores.items() if epoch < since}
        trial.later = trial.later[: sum(epoch < since for epoch in compared)]
        trial.best = max(trial.scores.values(), default=-math.inf)


@dataclass(slots=True)
class _Trial:
    scores: dict[int, float] = field(default_factory=dict)
    """Scores by epoch, the higher the better."""
    best: float = -math.inf
    later: list[float] = field(default_factory=list)
    """Scores from epoch `grace_epochs` on."""
