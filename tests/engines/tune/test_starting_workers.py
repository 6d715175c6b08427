"""Tune's idle workers and those that start: `starting_workers_kept` of `tune_private_api`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from ray.tune.execution import tune_controller
from ray.tune.utils.object_cache import _ObjectCache

from raygpu.engines.tune import tune_private_api
from raygpu.engines.tune.tune_private_api import starting_workers_kept


class Workers:
    """Tune's controller, as far as it gives idle workers to trials that wait for the same resources."""

    def __init__(self, *, live: set[str], waiting: list[Any]) -> None:
        self._trial_to_actor: dict[Any, str] = {}
        self._actor_to_trial: dict[str, Any] = {}
        self._resetting_trials: set[Any] = set()
        self._staged_trials = set(waiting)
        self._resources_to_pending_trials = {"half": set(waiting)}
        self._pending_trials_list = waiting
        self._actor_cache = _ObjectCache(may_keep_one=True)
        self._actor_cache.cache_object("half", "idle")
        self._actor_manager = SimpleNamespace(
            is_actor_started=live.__contains__, _live_actors_to_ray_actors_resources={"idle": [None]}
        )
        self.ended: list[str] = []

    def _remove_actor(self, tracked_actor: str) -> None:
        self.ended.append(tracked_actor)

    def _schedule_trial_reset(self, trial: Any, config: Any, tag: Any) -> None:
        self._resetting_trials.add(trial)

    def give(self, trial: Any, worker: str) -> None:
        self._trial_to_actor[trial], self._actor_to_trial[worker] = worker, trial

    def reuse(self, trial: Any) -> bool:
        return bool(tune_controller.TuneController._maybe_reuse_cached_actor(cast(Any, self), trial))


class Waiting:
    """A Tune trial that waits for resources."""

    placement_group_factory, config, experiment_tag = "half", None, None

    def set_ray_actor(self, actor: Any) -> None:
        pass


def test_an_idle_worker_leaves_a_starting_one_alone() -> None:
    """Tune alone would end the one that starts: trials shorter than a start would never have two workers."""
    starting, waiting, later = Waiting(), Waiting(), Waiting()
    for others in ([], [waiting, later]):
        workers = Workers(live={"starting"}, waiting=[starting, *others])
        workers.give(starting, "starting")
        workers.give(waiting, "without resources")
        with starting_workers_kept(lambda: True):
            assert not workers.reuse(starting)
        assert workers._trial_to_actor[starting] == "starting"
        assert workers.ended == ["without resources"] * bool(others)
        assert workers._trial_to_actor[waiting] == ("idle" if others else "without resources")
    assert workers.reuse(starting) is False, "no idle worker is left"


def test_the_last_trials_and_those_of_slow_starts_get_idle_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    starting = Waiting()
    for has_more, long_s in ((False, 1000.0), (True, -1.0)):
        monkeypatch.setattr(tune_private_api, "LONG_START_S", long_s)
        workers = Workers(live={"starting"}, waiting=[starting])
        workers.give(starting, "starting")
        with starting_workers_kept(lambda has_more=has_more: has_more):  # type: ignore[misc]
            assert workers.reuse(starting)
        assert workers.ended == ["starting"]


def test_an_idle_worker_goes_to_a_trial_without_one() -> None:
    new = Waiting()
    workers = Workers(live=set(), waiting=[new])
    with starting_workers_kept(lambda: True):
        assert workers.reuse(new)
        assert workers.reuse(new), "it is being given"
    assert workers._trial_to_actor[new] == "idle"


def test_tune_still_ends_the_worker_that_starts() -> None:
    """Once it does not, `starting_workers_kept` is not needed."""
    starting = Waiting()
    workers = Workers(live={"starting"}, waiting=[starting])
    workers.give(starting, "starting")
    assert workers.reuse(starting)
    assert workers.ended == ["starting"]
