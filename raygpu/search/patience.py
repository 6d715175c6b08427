"""Patience: stop a trial whose own score has not improved for some epochs, alone or beside another stopping rule."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

PATIENCE = "patience"
"""Reason recorded for a trial that patience stops."""


class StoppingRule(Protocol):
    """A rule that compares trials."""

    at_rungs: bool
    """Whether a trial is compared at some epochs alone, by its last score even if it is of an earlier epoch; a rule of
    every epoch looks at scores of that epoch."""

    def decide(self, epoch: int, scores: Sequence[tuple[str, float]]) -> frozenset[str]:
        """Return the trials, among these, that stop after this epoch. scores: by trial id, finite."""

    def forget(self, trial_ids: Iterable[str]) -> None:
        """Remove trials whose scores were wrong; they report again."""


class Patience:
    """The rule of Keras' `EarlyStopping`, for each trial by itself.

    A trial stops whose last better score, by more than `min_delta`, is at least `patience` epochs old, but not before
    epoch `grace_epochs`. An epoch without a score counts, and no trial stops at it. Asked again about an epoch, as
    after a lost worker, it forgets what the trial had from this epoch on, which the trial repeats: to the same scores
    it gives the same answers, to others new ones.
    """

    at_rungs = False

    def __init__(self, patience: int, min_delta: float, grace_epochs: int, *, maximize: bool) -> None:
        self.patience = patience
        self.min_delta = min_delta
        self.grace_epochs = grace_epochs
        self.sign = 1 if maximize else -1
        self._better: dict[str, list[tuple[int, float]]] = {}
        """Epochs at which a trial's score improved, each with the score, the higher the better, by trial id."""

    def decide(self, epoch: int, scores: Sequence[tuple[str, float]]) -> frozenset[str]:
        """Return the trials, among these, that stop after this epoch. scores: by trial id, finite."""
        stopped = []
        for trial_id, score in scores:
            better = self._better.setdefault(trial_id, [])
            while better and better[-1][0] >= epoch:
                better.pop()
            if not better or self.sign * score > better[-1][1] + self.min_delta:
                better.append((epoch, self.sign * score))
            if epoch >= self.grace_epochs and epoch - better[-1][0] >= self.patience:
                stopped.append(trial_id)
        return frozenset(stopped)

    def forget(self, trial_ids: Iterable[str]) -> None:
        """Remove trials whose scores were wrong; they report again."""
        for trial_id in trial_ids:
            self._better.pop(trial_id, None)


class WithPatience:
    """A stopping rule together with patience. rule: None for patience alone."""

    def __init__(self, rule: StoppingRule | None, patience: Patience) -> None:
        self.rule = rule
        self.patience = patience

    def decide(self, epoch: int, scores: Sequence[tuple[str, float]]) -> frozenset[str]:
        """Return the trials, among these, that stop after this epoch. scores: by trial id, finite."""
        return frozenset(self.reasons(epoch, scores))

    def reasons(
        self, epoch: int, scores: Sequence[tuple[str, float]], stale: Collection[str] = ()
    ) -> Mapping[str, str | None]:
        """Return the trials that stop, each with the reason; None for a trial that the other rule stops. stale: see
        `reasons`."""
        impatient: dict[str, str | None] = dict.fromkeys(_decided(self.patience, epoch, scores, stale), PATIENCE)
        by_rule = _decided(self.rule, epoch, scores, stale) if self.rule is not None else frozenset()
        return impatient | dict.fromkeys(by_rule)

    def forget(self, trial_ids: Iterable[str]) -> None:
        """Remove trials whose scores were wrong; they report again."""
        names = list(trial_ids)
        self.patience.forget(names)
        if self.rule is not None:
            self.rule.forget(names)


def reasons(
    rule: StoppingRule | WithPatience, epoch: int, scores: Sequence[tuple[str, float]], stale: Collection[str] = ()
) -> Mapping[str, str | None]:
    """Return the trials that a rule stops after this epoch, each with its reason; None if it is the rule's own.

    stale: trials among these that did not report the metric in this epoch, so that their scores are earlier ones.
    """
    if isinstance(rule, WithPatience):
        return rule.reasons(epoch, scores, stale)
    return dict.fromkeys(_decided(rule, epoch, scores, stale))


def _decided(
    rule: StoppingRule, epoch: int, scores: Sequence[tuple[str, float]], stale: Collection[str]
) -> frozenset[str]:
    return rule.decide(epoch, scores if rule.at_rungs else [each for each in scores if each[0] not in stale])
