"""Repeats: each set of hyper-parameters is trained several times, with other seeds or on other folds of the data.

`Repeats` wraps the `Sampler` that draws the sets. It gives out their trainings, which are trials of their own for all
that runs them, and tells the sampler a set's mean score once the set has ended. A set's trainings are given out at
once, but for two rules: where trials are stopped early, only the first training of a set may be stopped, and the others
follow if it was not; and with racing they are given out in rounds, of which clearly worse sets get no more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

from raygpu.config import SweepConfig
from raygpu.config.sweep_schema import RACED_FROM
from raygpu.search.generations import FIRST, Generations
from raygpu.search.racing import is_worse
from raygpu.search.samplers import DrawnTrials, Sampler
from raygpu.search.space import Space, random_trials, trial_seed
from raygpu.search.trials import Trial

Lack = Literal["failed", "diverged", "stopped", "racing"]
"""Reason why a set gets no more trainings."""
ROUND = 4
"""A round of racing adds a quarter of the trainings that each set has."""


@dataclass(frozen=True, slots=True)
class Repetition:
    """The number of trainings of each set, and their seeds and folds by number."""

    repeats: int = 1
    folds: int | None = None
    """Number of folds; None without cross-validation."""

    @classmethod
    def of(cls, config: SweepConfig) -> Repetition:
        """Return the repetition that a sweep asks for."""
        return cls(config.repeats, config.folds)

    @property
    def per_set(self) -> int:
        """Number of trainings of each set."""
        return self.repeats * (self.folds or 1)

    @property
    def is_single(self) -> bool:
        """Whether each set is trained once, as a trial without a number."""
        return self.repeats == 1 and self.folds is None

    def training(self, drawn: Trial, number: int, seed: int) -> Trial:
        """Return a set's training by its number from 0: the folds of the first repeat, of the second one, and so on.

        drawn: the set, as its sampler drew it. seed: of the sweep; a repeat has the same seed in every set.
        """
        repeat, fold = divmod(number, self.folds or 1)
        name = Trial.repeat_name(drawn.trial_id, number)
        validation_fold = fold if self.folds is not None else None
        return Trial(name, trial_seed(seed, repeat), drawn.hyperparameters, repeat, validation_fold)

    def seed_of(self, trial_id: str, seed: int) -> int:
        """Return a trial's seed by its id: by its place in the search, or by its number within its set."""
        set_id, _, number = trial_id.partition("-")
        return trial_seed(seed, (int(number) - 1) // (self.folds or 1) if number else int(set_id[1:]))


def number_of(trial_id: str) -> int:
    """Return a training's number within its set, from 0."""
    return int(trial_id.partition("-")[2] or 1) - 1


def may_be_stopped(trial_id: str) -> bool:
    """Return whether a stopping rule may stop a trial: the first training of its set."""
    return number_of(trial_id) == 0


def first_round(config: SweepConfig) -> int:
    """Return the number of trainings of a set that are given out before any result of the set is wanted."""
    return _target(0, config.per_set, racing=config.racing, screened=config.stopping.algorithm != "none")


def given_at_once(config: SweepConfig, *, in_arrays: bool) -> int | None:
    """Return the number of trainings that a sweep gives out before it wants results; None for all of them.

    in_arrays: whether similar trials train together. Generations that grow count by their mean size; with a time
    budget, which may end the sweep early, by the first one's.
    """
    per_set, first, generations = config.per_set, first_round(config), Generations.of(config, in_arrays=in_arrays)
    if generations is None and first == per_set:
        return None
    if generations is None:
        return first * (config.trials or 1)
    return first * (generations.first if config.time_budget_s is not None else generations.mean)


def _target(given: int, per_set: int, *, racing: bool, screened: bool) -> int:
    """Return the number of trainings that a set has after its next round. given: those that it has."""
    if screened and not given:
        return 1
    if not racing:
        return per_set
    return min(per_set, RACED_FROM if given < RACED_FROM else given + max(1, given // ROUND))


@dataclass(slots=True)
class _Set:
    """A set under way."""

    drawn: Trial
    given: int = 0
    """Number of trainings that were given out."""
    told: dict[int, float | None] = field(default_factory=dict)
    """Scores by number; None for a training that failed."""
    stopped: set[int] = field(default_factory=set)
    """Numbers of trainings that were stopped early."""
    lack: Lack | None = None
    ended: bool = False

    @property
    def waits(self) -> bool:
        """Whether trainings that were given out have not ended."""
        return len(self.told) < self.given

    @property
    def scores(self) -> dict[int, float]:
        """Finite scores by number."""
        return {number: score for number, score in self.told.items() if score is not None and math.isfinite(score)}

    def fault(self) -> Lack | None:
        """Return why its trainings so far do not allow more; None if they do."""
        if any(score is None for score in self.told.values()):
            return "failed"
        if len(self.scores) < len(self.told):
            return "diverged"
        return "stopped" if self.stopped else None


class Repeats:
    """Sampler of the trainings of another sampler's sets.

    screened: whether trials are stopped early.
    """

    def __init__(
        self,
        base: Sampler,
        repetition: Repetition,
        seed: int,
        *,
        maximize: bool,
        racing: bool = False,
        screened: bool = False,
    ) -> None:
        self.base = base
        self.repetition = repetition
        self.seed = seed
        self.maximize = maximize
        self.racing = racing
        self.screened = screened
        self.saved: set[str] = set()
        """Ids of the trainings that are left out: of sets that were stopped, raced out, failed or diverged."""
        self._sets: dict[str, _Set] = {}
        self._open: dict[str, _Set] = {}
        """Sets that have not ended, by id."""
        self._queue: list[Trial] = []

    @property
    def num_sets(self) -> int:
        """Number of sets."""
        return self.base.num_trials

    @property
    def num_trials(self) -> int:
        """Number of trainings, without those that are left out."""
        return self.num_sets * self.repetition.per_set - len(self.saved)

    @property
    def trials(self) -> list[Trial] | None:
        """All trainings that may be given out; None if the search draws its sets as it goes."""
        if not isinstance(self.base, DrawnTrials):
            return None
        return [
            self._training(drawn, number) for drawn in self.base.trials for number in range(self.repetition.per_set)
        ]

    @property
    def finished(self) -> bool:
        """Whether all trainings have been given out."""
        per_set = self.repetition.per_set
        return self.base.finished and not self._queue and all(each.given == per_set for each in self._open.values())

    @property
    def draws_singly(self) -> bool:
        """Whether each set is drawn by all results so far."""
        return self.base.draws_singly

    def end_generations(self) -> None:
        """Draw each set by all results so far, if the search learns."""
        self.base.end_generations()

    def next(self) -> Trial | None:
        """Return the next training; None while it depends on scores that are missing, and after the last one."""
        if not self._queue and self.draws_singly:
            self._give_rounds()  # a set under way goes before a new one
        if not self._queue:
            while (drawn := self.base.next()) is not None:
                self._sets[drawn.trial_id] = self._open[drawn.trial_id] = _Set(drawn)
                if self.draws_singly:
                    break
            self._give_rounds()
        return self._queue.pop(0) if self._queue else None

    def tell(
        self, trial_id: str, score: float | None, further: Sequence[float | None] = (), *, stopped: bool = False
    ) -> None:
        """Take in a training's score, or None for one that failed. stopped: whether it was stopped early.

        further: nothing, since repeats are for a single metric.
        """
        trial_set = self._sets.get(trial_id.partition("-")[0])
        if trial_set is None:
            return
        number = number_of(trial_id)
        trial_set.told[number] = score
        (trial_set.stopped.add if stopped else trial_set.stopped.discard)(number)
        if not trial_set.waits:
            self._judge(trial_set)

    def give_again(self, trial_ids: Iterable[str]) -> None:
        """Wait again for trainings that failed: their sets are judged once all of them have ended."""
        for trial_id in trial_ids:
            self._sets[trial_id.partition("-")[0]].told.pop(number_of(trial_id), None)

    def extend(self, larger: Repeats) -> None:
        """Go on to as many sets, and to as many repeats of each, as another sampler has. Raises BadInput."""
        self.base.extend(larger.base)
        if larger.repetition != self.repetition:
            self.repetition = larger.repetition
            complete = [each for each in self._sets.values() if each.ended and each.lack is None]
            for each in complete:
                each.ended = False
                self._open[each.drawn.trial_id] = each
            for each in self._sets.values():
                if each.lack is not None:
                    self.saved |= self._left(each)

    def _training(self, drawn: Trial, number: int) -> Trial:
        return self.repetition.training(drawn, number, self.seed)

    def _give_rounds(self) -> None:
        """Queue the next round of the sets that may have one."""
        if self.racing and not self._race():
            return
        for each in self._open.values():
            if each.waits or each.given == self.repetition.per_set:
                continue
            target = _target(each.given, self.repetition.per_set, racing=self.racing, screened=self.screened)
            self._queue += [self._training(each.drawn, number) for number in range(each.given, target)]
            each.given = target

    def _race(self) -> bool:
        """End the sets that are clearly worse than the leading one; return whether the next round may begin.

        Sets are compared once all of a round have its scores. One that was left out goes on if it is no longer worse:
        the leading set may have lost its lead.
        """
        begun = [each for each in self._open.values() if each.given]
        if any(each.waits for each in begun):
            return False
        rivals = [each for each in self._sets.values() if each.lack is None and each.scores]
        if not rivals:
            return True
        sign = 1 if self.maximize else -1
        leading = max(rivals, key=lambda each: sign * fmean(each.scores.values()))
        for each in [*begun, *(one for one in self._sets.values() if one.lack == "racing")]:
            worse = each is not leading and is_worse(each.scores, leading.scores, maximize=self.maximize)
            if worse and each.lack is None:
                each.lack = "racing"
                self._end(each)
            elif not worse and each.lack == "racing":
                each.lack = None
                self._reopen(each)
        return True

    def _judge(self, found: _Set) -> None:
        """End a set whose trainings so far have ended, or let it have more. It may have ended before."""
        if found.lack == "racing":
            return
        found.lack = found.fault()
        if found.lack is not None or found.given == self.repetition.per_set:
            self._end(found)
        elif found.ended:  # a training that had failed was repeated
            self._reopen(found)

    def _reopen(self, found: _Set) -> None:
        found.ended, self._open[found.drawn.trial_id] = False, found
        self.saved -= self._left(found)

    def _end(self, found: _Set) -> None:
        found.ended = True
        self._open.pop(found.drawn.trial_id, None)
        self.saved |= self._left(found)
        self.base.tell(found.drawn.trial_id, self._score(found))

    def _score(self, found: _Set) -> float | None:
        """Return the score that the base sampler learns: the mean, the worst one of a set that diverged, or None if all
        trainings failed."""
        if found.lack == "diverged":
            return -math.inf if self.maximize else math.inf
        return fmean(found.scores.values()) if found.scores else None

    def _left(self, found: _Set) -> set[str]:
        """Return the ids of a set's trainings that were not given out."""
        numbers = range(found.given, self.repetition.per_set)
        return {Trial.repeat_name(found.drawn.trial_id, number) for number in numbers}


def repeated(base: Sampler, config: SweepConfig) -> Sampler:
    """Return the sampler of a sweep's trainings: the base sampler itself where each set is trained once."""
    repetition = Repetition.of(config)
    if repetition.is_single:
        return base
    screened = config.stopping.algorithm != "none"
    return Repeats(base, repetition, config.seed, maximize=config.maximize, racing=config.racing, screened=screened)


def known_trials(sampler: Sampler) -> Sequence[Trial] | None:
    """Return all trials that a sampler may give out; None if the search draws them as it goes."""
    return sampler.trials if isinstance(sampler, DrawnTrials | Repeats) else None


def expected_trials(sampler: Sampler, space: Space, config: SweepConfig) -> Sequence[Trial]:
    """Return the trials that a sampler may give out; where the search draws them as it goes, as many random ones as
    a generation has."""
    trials = known_trials(sampler)
    if trials is not None:
        return trials
    repetition = Repetition.of(config)
    sets = random_trials(space, config.search.generation or FIRST, config.seed)
    if repetition.is_single:
        return sets
    return [repetition.training(drawn, number, config.seed) for drawn in sets for number in range(repetition.per_set)]
