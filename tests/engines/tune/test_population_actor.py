"""The population's actor, in this process: it waits for a missing trial, but not for ever."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError, RayTaskError

from raygpu.config.population_section import PopulationSection
from raygpu.engines.tune import population_actor as module
from raygpu.engines.tune.engine import all_at_once
from raygpu.engines.tune.population_actor import PATIENCE_S, PopulationActor, PopulationClient, PopulationLost
from raygpu.search.population import MemberScores, Population, Reached
from raygpu.search.space import parse
from raygpu.search.trials import Trial


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(module, "time", found)
    return found


def population(together: bool = True) -> Population:
    groups = {f"t000{i}": "" for i in range(3)}
    parameters = parse({"lr": {"loguniform": [1e-3, 1.0]}}).parameters
    section = PopulationSection(interval=2)
    return Population(section, parameters, groups, epochs=9, seed=0, maximize=True, together=together)


def report(place: int, epoch: int = 2) -> list[MemberScores]:
    return [MemberScores(f"t000{place}", {epoch: Reached(float(place), {"lr": 0.1})}, {})]


def test_a_trial_of_which_nothing_is_heard_is_not_waited_for_for_ever(clock: Clock) -> None:
    actor = PopulationActor(population())
    assert actor.exchange(2, report(0), [], 5.0) is None
    clock.now = PATIENCE_S - 1
    assert actor.exchange(2, report(1), [], 5.0) is None
    clock.now = 2 * PATIENCE_S - 2
    assert actor.exchange(2, report(0), [], 5.0) is None, "heard of one not long ago"
    clock.now = 2 * PATIENCE_S
    assert actor.exchange(2, report(0), [], 5.0) is not None


def test_long_intervals_are_waited_for_longer(clock: Clock) -> None:
    actor = PopulationActor(population())
    assert actor.exchange(2, report(0), [], 3600.0) is None
    clock.now = 9 * 3600.0
    assert actor.exchange(2, report(0), [], 3600.0) is None


def test_with_a_workers_later_trials_nobody_waits_and_those_before_them_are_saved(clock: Clock) -> None:
    actor = PopulationActor(population())
    assert actor.exchange(2, report(0), [], 1.0) is None
    orders = actor.exchange(2, report(1), ["t0002"], 1.0)
    assert orders is not None
    assert orders.save == ("t0001",)
    restored = PopulationActor(population())
    restored.restore(pickle.loads(pickle.dumps(actor.state())))
    assert restored.exchange(4, report(0, 4), [], 1.0) is not None, "also of a resumed sweep, whose last array it is"


def test_parameters_that_never_come_are_lost(clock: Clock) -> None:
    actor = PopulationActor(population())
    assert [actor.exchange(2, report(i), [], 1.0) is None for i in range(3)] == [True, True, False]
    assert actor.donor(2, "t0002") == "coming"
    clock.now = PATIENCE_S + 1
    assert actor.donor(2, "t0002") == "lost"
    actor.saved(2, ["t0002"])
    assert actor.donor(2, "t0002") == "saved"


def test_a_restored_population_learns_anew_whether_its_trials_train_at_once() -> None:
    actor = PopulationActor(population(together=False))
    actor.restore(population(together=True))
    assert not actor.state().together


@pytest.mark.parametrize("is_lost", [True, False])
def test_an_error_of_the_actors_own_code_is_none_of_a_lost_one(is_lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    own = RayTaskError("exchange", "Traceback ...", TypeError("a list")).as_instanceof_cause()

    def get(_: Any) -> None:
        raise RayActorError() if is_lost else own

    monkeypatch.setattr(module.ray, "get", get)
    actor: Any = SimpleNamespace(exchange=SimpleNamespace(remote=lambda *_: None))
    with pytest.raises(PopulationLost if is_lost else TypeError):
        PopulationClient(actor).exchange(2, [], [], 1.0)


def test_trials_train_at_once_if_there_are_places_for_all() -> None:
    plan: Any = SimpleNamespace(slots=2)
    trials = [Trial(f"t000{i}", i, {}) for i in range(3)]
    assert all_at_once(trials[:2], plan, None)
    assert not all_at_once(trials, plan, None)
