"""Hyperband: successive halving with several first rungs at once (Li et al., JMLR 2018), asynchronous as in ASHA.

Halving stops a trial early if its first epochs are bad, also one that would have been good later. Hyperband divides the
trials among brackets: bracket 0 has its first rung at `grace_epochs`, bracket 1 at grace_epochs x reduction, and the
last one stops no trial. The brackets cost about the same, so most trials are in the first one.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from raygpu.search.halving import Halving, rungs

CHUNK = 1024
"""Trials that are assigned together; each chunk begins with the counts of those before it."""


def first_rungs(grace_epochs: int, reduction: float, max_epochs: int) -> list[float]:
    """Return grace_epochs x reduction^s for each bracket s that has a rung below `max_epochs`, not rounded."""
    rungs_by_epoch: dict[int, float] = {}
    for s in itertools.count():
        rung = grace_epochs * reduction**s
        if math.ceil(rung - 1e-9) >= max_epochs:
            return list(rungs_by_epoch.values())
        rungs_by_epoch.setdefault(math.ceil(rung - 1e-9), rung)
    raise AssertionError


def bracket_shares(num_rungs: int, reduction: float, brackets: int | None = None) -> list[float]:
    """Return the share of the trials in each bracket, that of the first rung first.

    Li et al., algorithm 1: a bracket whose trials are halved s times starts with (s_max + 1) / (s + 1) x reduction^s.
    num_rungs: of bracket 0. brackets: number of brackets; None for all, one more than rungs.
    """
    most = num_rungs + 1
    halvings = range(num_rungs, num_rungs - min(brackets or most, most), -1)
    weights = [reduction**s / (s + 1) for s in halvings]
    return [weight / sum(weights) for weight in weights]


def bracket_of(index: int, shares: Sequence[float]) -> int:
    """Return the bracket of the trial at this place of a sweep: the one that is furthest behind its share.

    So the first n trials are divided by the shares as evenly as can be, for every n.
    """
    return _assigned(index // CHUNK, tuple(shares))[index % CHUNK]


@cache
def _assigned(chunk: int, shares: tuple[float, ...]) -> list[int]:
    counts: Counter[int] = Counter()
    for earlier in range(chunk):
        counts.update(_assigned(earlier, shares))
    brackets = []
    for index in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        behind = [share * (index + 1) - counts[bracket] for bracket, share in enumerate(shares)]
        bracket = max(range(len(shares)), key=lambda own: (behind[own], -own))
        counts[bracket] += 1
        brackets.append(bracket)
    return brackets


class Hyperband:
    """Hyperband's rule: each trial is compared with those of its own bracket, as ASHA compares them.

    A trial's bracket follows from its place in the sweep. Asked again about a trial, as after a lost worker, it gives
    the same answer.
    """

    at_rungs = True

    def __init__(
        self, grace_epochs: int, reduction: float, max_epochs: int, *, maximize: bool, brackets: int | None = None
    ) -> None:
        """Begin without trials. brackets: number of brackets, at most those of `num_brackets`; None for all."""
        first = first_rungs(grace_epochs, reduction, max_epochs)
        self.shares = bracket_shares(len(first), reduction, brackets)
        # A bracket's rungs are those of bracket 0 from its own first rung on.
        self._rules = [
            Halving(grace, reduction, max_epochs, maximize=maximize)
            for grace in [*first, max_epochs][: len(self.shares)]
        ]

    def decide(self, epoch: int, scores: Sequence[tuple[str, float]]) -> frozenset[str]:
        """Return the trials, among these, that stop after this epoch. scores: by trial id, finite."""
        by_bracket: dict[int, list[tuple[str, float]]] = {}
        for trial_id, score in scores:
            by_bracket.setdefault(self.bracket(trial_id), []).append((trial_id, score))
        return frozenset().union(*(self._rules[index].decide(epoch, entries) for index, entries in by_bracket.items()))

    def bracket(self, trial_id: str) -> int:
        """Return a trial's bracket; repeats of one set share it."""
        return bracket_of(int(trial_id.partition("-")[0][1:]), self.shares)

    def forget(self, trial_ids: Iterable[str]) -> None:
        """Remove trials whose scores were wrong; they report again."""
        names = list(trial_ids)
        for rule in self._rules:
            rule.forget(names)


def stops(grace_epochs: int, reduction: float, max_epochs: int, brackets: int | None) -> dict[int, float]:
    """Return the share, of the trials that reach a rung, that is expected to stop there, by epoch.

    brackets: number of brackets, 1 for halving; None for all.
    """
    first = rungs(grace_epochs, reduction, max_epochs)
    shares = bracket_shares(len(first), reduction, brackets)
    stop_shares: dict[int, float] = {}
    for place, epoch in enumerate(first):
        # Of each bracket, the part that is left before this rung; brackets that begin later are whole.
        parts = [share / reduction ** max(0, place - bracket) for bracket, share in enumerate(shares)]
        ending = sum(part * (1 - 1 / reduction) for bracket, part in enumerate(parts) if bracket <= place)
        stop_shares[epoch] = ending / sum(parts)
    return stop_shares


def mean_epochs(stopped: Mapping[int, float], max_epochs: int) -> float:
    """Return the mean number of epochs of a trial. stopped: result of `stops`, in the order of the epochs."""
    survival, before, total = 1.0, 0, 0.0
    for epoch, ending in stopped.items():
        total += survival * (epoch - before)
        survival, before = survival * (1 - ending), epoch
    return total + survival * (max_epochs - before)
