"""A population under way: what its trials have reported, and what each of them is to do after an interval.

population = Population(section, parameters, populations(trials, names), epochs=20, seed=0, maximize=True)
orders = population.exchange(5, [MemberScores("t0000", {5: Reached(0.9, {"lr": 0.1})}, {})])  # None: wait for others

Where all trials train at once, an interval is decided when the last of them has got there, so that the result depends
on the seed alone. Where they do not, or where one is missing, a trial is compared with those that have been there, and
the best ones' parameters are kept for those that come later.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from raygpu.config.population_section import PopulationSection
from raygpu.search.exploration import draws, explore, quantiles
from raygpu.search.space import Parameter
from raygpu.search.trial_record import Change


@dataclass(frozen=True, slots=True)
class Reached:
    """A trial at the end of an interval."""

    score: float
    """Score at this epoch; not finite if the trial has diverged."""
    values: Mapping[str, Any]
    """Values with which it has trained, of the hyper-parameters that are taken over."""


@dataclass(frozen=True, slots=True)
class MemberScores:
    """A trial's report at an interval, with all that it has reported before: it may be all that is left of it."""

    trial_id: str
    reached: Mapping[int, Reached]
    """By epoch."""
    decided: Mapping[int, Change | None]
    """Decisions that it has carried out, by epoch; None to go on unchanged."""


@dataclass(frozen=True, slots=True)
class Orders:
    """Orders to the trials of one worker, for before their next epoch."""

    changes: Mapping[str, Change] = field(default_factory=dict)
    """By trial id; the others go on unchanged."""
    save: tuple[str, ...] = ()
    """Trials whose parameters others need, and cannot take from this worker's memory."""
    ended: tuple[str, ...] = ()
    """Trials that have diverged, and find nobody to take parameters from."""
    obsolete: tuple[int, ...] = ()
    """Intervals whose saved parameters nobody needs any more."""


Donor = Literal["saved", "coming", "lost"]
FEW_DONORS = 2
"""Largest number of trials of which an interval's parameters are kept where a population does not fit in memory: they
stay until the last of its trials is past the interval."""


class Population:
    """The trials of a sweep that are compared at intervals. Picklable.

    parameters: the hyper-parameters that change. groups: population of each trial; trials of one compare with each
    other alone. together: whether all trials train at once.
    """

    def __init__(
        self,
        section: PopulationSection,
        parameters: Sequence[Parameter],
        groups: Mapping[str, str],
        *,
        epochs: int,
        seed: int,
        maximize: bool,
        together: bool = True,
    ) -> None:
        self.section, self.parameters, self.groups = section, tuple(parameters), dict(groups)
        self.seed, self.sign, self.together = seed, 1 if maximize else -1, together
        self._reached: dict[int, dict[str, Reached]] = {epoch: {} for epoch in section.epochs(epochs)}
        self._decided: dict[int, dict[str, Change | None]] = {epoch: {} for epoch in self._reached}
        self._saved: dict[int, set[str]] = {epoch: set() for epoch in self._reached}
        self._last: dict[str, int] = {}
        self._away: set[str] = set()
        self._ended: set[str] = set()
        self._apart: set[str] = set()
        """Populations with trials that begin only once others have ended."""

    def exchange(self, epoch: int, reports: Sequence[MemberScores]) -> Orders | None:
        """Take in the reports of one worker's trials at an interval; return their orders, None to wait.

        Asked again, it gives the same orders. Others are compared with a trial's latest scores.
        """
        names = [report.trial_id for report in reports]
        for report in reports:
            self._take(epoch, report)
        for name in names:
            if name not in self._decided[epoch]:
                if self.missing(epoch, self.groups[name]):
                    return None
                self._decide(epoch, self.groups[name], names)
        return self._orders(epoch, names)

    def _take(self, epoch: int, report: MemberScores) -> None:
        name = report.trial_id
        self._away.discard(name)
        self._ended.discard(name)
        self._last[name] = epoch
        for earlier, reached in report.reached.items():
            if earlier in self._reached:
                self._reached[earlier][name] = reached  # another attempt's may differ from what was known
        for earlier, change in report.decided.items():
            if earlier in self._decided:
                self._decided[earlier].setdefault(name, change)

    def missing(self, epoch: int, group: str) -> list[str]:
        """Return the trials of a population that an interval waits for."""
        if not self._waits(group):
            return []
        return [name for name in self._alive(group) if name not in self._away and self._last.get(name, 0) < epoch]

    def _waits(self, group: str) -> bool:
        """Return whether trials of a population wait for each other."""
        return self.together and group not in self._apart

    def _alive(self, group: str) -> list[str]:
        return [name for name, trial_group in self.groups.items() if trial_group == group and name not in self._ended]

    def _decide(self, epoch: int, group: str, asking: Sequence[str]) -> None:
        """Decide for all trials that stand at this epoch; where they do not wait for each other, for those that ask."""
        reached, decided = self._reached[epoch], self._decided[epoch]
        members = [name for name in sorted(reached) if self.groups[name] == group]
        standing = [name for name in members if name not in decided and self._last.get(name) == epoch]
        if not self._waits(group):
            standing = [name for name in standing if name in asking]
        scores = [(name, self._score(epoch, name)) for name in members]
        lowest, highest = quantiles(scores, self.section.quantile)
        donors = [
            name
            for name in highest
            if math.isfinite(reached[name].score) and (name in standing or name in self._saved[epoch])
        ]
        for name in standing:
            loses = name in lowest or not math.isfinite(reached[name].score)
            decided[name] = self._changed(epoch, name, donors) if loses and donors else None

    def _score(self, epoch: int, name: str) -> float:
        """Return a trial's score at an epoch, the higher the better; that of one that diverged is below all others."""
        score = self._reached[epoch][name].score
        return self.sign * score if math.isfinite(score) else -math.inf

    def _changed(self, epoch: int, name: str, donors: Sequence[str]) -> Change:
        rng = draws(self.seed, epoch, name)
        donor = rng.choice(donors)
        values = explore(rng, self._reached[epoch][donor].values, self.parameters, self.section.resample)
        return Change(epoch, donor, values)

    def _orders(self, epoch: int, names: Sequence[str]) -> Orders:
        decided, reached = self._decided[epoch], self._reached[epoch]
        changes = {name: change for name in names if (change := decided[name]) is not None}
        ended = tuple(name for name in names if decided[name] is None and not math.isfinite(reached[name].score))
        wanted = {change.donor for name, change in decided.items() if change is not None and name not in names}
        wanted |= {name for name in names if self._may_give(epoch, name, names)}
        save = tuple(name for name in names if name in wanted and name not in self._saved[epoch])
        return Orders(changes, save, ended, self._obsolete())

    def _may_give(self, epoch: int, name: str, names: Sequence[str]) -> bool:
        """Return whether a trial that comes later may still take over this one's parameters."""
        group = self._alive(self.groups[name])
        later = [other for other in group if other not in names and self._last.get(other, 0) <= epoch]
        if self._waits(self.groups[name]):
            later = [other for other in later if other in self._away]
        if not later:
            return False
        most = math.ceil(len(group) * self.section.quantile)
        if self.groups[name] in self._apart:
            most = min(most, FEW_DONORS)
        score = self._score(epoch, name)
        better = [other for other in self._reached[epoch] if other in group and self._score(epoch, other) > score]
        return math.isfinite(score) and len(better) < most

    def _obsolete(self) -> tuple[int, ...]:
        """Return, once, the intervals that every trial has left behind, together with the interval after them."""
        alive = [self._last.get(name, 0) for name in self.groups if name not in self._ended]
        assert self.section.interval is not None
        passed = min(alive, default=0) - self.section.interval
        epochs = tuple(epoch for epoch, names in self._saved.items() if names and epoch < passed)
        for epoch in epochs:
            self._saved[epoch].clear()
        return epochs

    def saved(self, epoch: int, trial_ids: Iterable[str]) -> None:
        """Note that trials' parameters at an epoch are kept where every worker reaches them."""
        self._saved[epoch].update(trial_ids)

    def donor(self, epoch: int, name: str) -> Donor:
        """Return whether a trial's parameters at an epoch are kept, or will be."""
        if name in self._saved[epoch]:
            return "saved"
        here = self._last.get(name) == epoch and name not in self._away | self._ended
        return "coming" if here else "lost"

    def keep(self, epoch: int, name: str) -> None:
        """Let a trial go on unchanged after all, because its donor's parameters were lost."""
        self._decided[epoch][name] = None

    def leave(self, trial_ids: Collection[str], *, ended: bool) -> None:
        """Note that trials are not under way: no interval waits for them until they report. ended: whether for good."""
        (self._ended if ended else self._away).update(set(trial_ids) & self.groups.keys())

    def follow(self, trial_ids: Collection[str]) -> None:
        """Note that trials begin only once others have ended: in their populations nobody waits any more."""
        self.leave(trial_ids, ended=False)
        self._apart |= {self.groups[name] for name in trial_ids if name in self.groups}

    def forget(self, trial_ids: Iterable[str]) -> None:
        """Remove all that trials have reported, which train again from the beginning."""
        for name in trial_ids:
            self._last.pop(name, None)
            self._ended.discard(name)
            for reached in self._reached.values():
                reached.pop(name, None)
            for decided in self._decided.values():
                decided.pop(name, None)
            for names in self._saved.values():
                names.discard(name)
