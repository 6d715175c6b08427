"""The population of a sweep, for workers in many processes: a Ray actor that holds it, and how they reach it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from raygpu.search.population import Donor, MemberScores, Orders, Population
from raygpu.search.trials import Trial
from raygpu.storage import Storage

PATIENCE_S = 120.0
"""Shortest time without any report after which an interval no longer waits for trials that are missing."""
INTERVALS = 10
"""The same as a multiple of the longest interval so far."""


class PopulationLost(RuntimeError):
    """The actor of the population does not answer."""


class PopulationActor:
    """Ray actor that holds the population for all workers of a sweep."""

    def __init__(self, population: Population) -> None:
        self._population = population
        self._heard = time.monotonic()
        self._longest_s = 0.0
        self._seen: set[tuple[int, str]] = set()
        self._asked: dict[tuple[int, str], float] = {}
        """Moment at which each donor's parameters were first asked for."""

    def exchange(self, epoch: int, reports: list[MemberScores], absent: list[str], took_s: float) -> Orders | None:
        """Take in reports of one worker's trials; return their orders, None to ask again.

        absent: the worker's trials that begin later, as memory does not hold them: not all trials train at once.
        took_s: seconds since its last interval. Trials that nobody has heard of for too long are no longer waited for.
        """
        population, now = self._population, time.monotonic()
        population.follow(absent)
        new = {(epoch, report.trial_id) for report in reports} - self._seen
        if new:
            self._seen |= new
            self._heard, self._longest_s = now, max(self._longest_s, took_s)
        orders = population.exchange(epoch, reports)
        if orders is None and now - self._heard > max(PATIENCE_S, INTERVALS * self._longest_s):
            groups = {population.groups[report.trial_id] for report in reports}
            population.leave([n for group in groups for n in population.missing(epoch, group)], ended=False)
            orders = population.exchange(epoch, reports)
        return orders

    def saved(self, epoch: int, trial_ids: list[str]) -> None:
        """Note that trials' parameters at an epoch are kept where every worker reaches them."""
        self._population.saved(epoch, trial_ids)

    def donor(self, epoch: int, name: str) -> Donor:
        """Return whether a trial's parameters at an epoch are saved, or still expected; not for ever, as its worker may
        be lost."""
        donor_state, now = self._population.donor(epoch, name), time.monotonic()
        asked = self._asked.setdefault((epoch, name), now)
        if donor_state == "coming" and now - asked > max(PATIENCE_S, INTERVALS * self._longest_s):
            return "lost"
        return donor_state

    def keep(self, epoch: int, name: str) -> None:
        """Let a trial go on unchanged after all."""
        self._population.keep(epoch, name)

    def leave(self, trial_ids: list[str], ended: bool) -> None:
        """Note that trials are not under way. ended: whether for good."""
        self._population.leave(trial_ids, ended=ended)

    def follow(self, trial_ids: list[str]) -> None:
        """Note that trials begin only once others have ended."""
        self._population.follow(trial_ids)

    def forget(self, trial_ids: list[str]) -> None:
        """Remove all that trials have reported, which train again from the beginning."""
        self._population.forget(trial_ids)

    def state(self) -> Population:
        """Return the population with all that its trials have reported."""
        return self._population

    def restore(self, population: Population) -> None:
        """Go on with a population that `state` returned; whether there are slots for all its trials is known anew."""
        population.together = self._population.together
        self._population = population


class PopulationClient:
    """The population as a worker sees it. Raises PopulationLost if its actor is gone, and the errors of its code."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def _ask(self, method: str, *arguments: Any) -> Any:
        try:
            return ray.get(getattr(self._actor, method).remote(*arguments))
        except RayTaskError:
            raise
        except RayError as error:
            raise PopulationLost("the actor of the population was lost") from error

    def exchange(
        self, epoch: int, reports: Sequence[MemberScores], absent: Sequence[str], took_s: float
    ) -> Orders | None:
        """Return the orders of a worker's trials after an interval; None to ask again."""
        orders: Orders | None = self._ask("exchange", epoch, list(reports), list(absent), took_s)
        return orders

    def saved(self, epoch: int, trial_ids: Sequence[str]) -> None:
        """Note that trials' parameters at an epoch are kept."""
        self._ask("saved", epoch, list(trial_ids))

    def donor(self, epoch: int, name: str) -> Donor:
        """Return whether a trial's parameters at an epoch are kept, or will be."""
        donor_state: Donor = self._ask("donor", epoch, name)
        return donor_state

    def keep(self, epoch: int, name: str) -> None:
        """Let a trial go on unchanged after all."""
        self._ask("keep", epoch, name)


@dataclass(frozen=True, slots=True)
class PopulationSettings:
    """The population of a sweep, for its workers."""

    actor: Any
    epochs: frozenset[int]
    """Epochs after which trials are compared."""
    changing: tuple[str, ...]
    """Hyper-parameters that a trial takes over, those that may change first."""
    folder: Storage
    """Storage for the parameters that trials give to others, with a folder for each epoch."""


def begun_values(trial: Trial, changing: Sequence[str]) -> dict[str, Any]:
    """Return a trial's values at its start, of the hyper-parameters that it may take over."""
    return {name: trial.hyperparameters[name] for name in changing if name in trial.hyperparameters}
