"""Workers are kept between two generations, but never hold what another trial waits for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.utils.object_cache import _ObjectCache

from raygpu.engines.tune.scheduler import PausingScheduler, WorkerReuse, kept_requests
from raygpu.records.device import Device
from raygpu.records.trial_records import Records
from raygpu.search.scoring import Scoring


class Controller:
    """Tune's controller, as far as workers without a trial go."""

    def __init__(self) -> None:
        self._actor_cache = _ObjectCache(may_keep_one=True)
        self.live: list[Any] = []
        self.ended: list[str] = []

    def get_live_trials(self) -> list[Any]:
        return self.live

    def end(self, workers: WorkerReuse, request: str, worker: str) -> None:
        """End a trial: Tune tells the scheduler, and then keeps the worker or not."""
        workers.ended(self, trial(request))
        if not self._actor_cache.cache_object(request, worker):
            self.ended.append(worker)

    def flush(self) -> list[str]:
        """Return the workers that Tune ends after a step."""
        return list(self._actor_cache.flush_cached_objects())


def trial(request: str, status: str = "RUNNING") -> Any:
    return SimpleNamespace(placement_group_factory=request, status=status)


def sweep(*, drawn: int = 8, learns: bool = True) -> Any:
    search = SimpleNamespace(learns=learns)
    return SimpleNamespace(
        stopping=False,
        trials=dict.fromkeys(range(drawn)),
        records=SimpleNamespace(num_trials=16),
        config=SimpleNamespace(search=search),
    )


@pytest.fixture
def controller() -> Controller:
    return Controller()


def test_idle_workers_stay_while_the_search_waits(controller: Controller) -> None:
    workers = WorkerReuse(sweep())
    for worker in ("a", "b", "c"):
        controller.end(workers, "quarter", worker)
    assert controller.ended == []
    assert controller.flush() == []


def test_without_generations_tune_decides_alone(controller: Controller) -> None:
    workers = WorkerReuse(sweep(learns=False))
    for worker in ("a", "b", "c"):
        controller.end(workers, "quarter", worker)
    assert controller.ended == ["b", "c"]


def test_they_go_once_the_last_trial_is_drawn(controller: Controller) -> None:
    live = sweep()
    workers = WorkerReuse(live)
    for worker in ("a", "b"):
        controller.end(workers, "quarter", worker)
    live.trials = dict.fromkeys(range(16))
    workers.update([])
    assert controller.flush() == ["a", "b"]
    assert controller._actor_cache.total_max_objects == 0


def test_they_go_for_a_trial_with_another_share_and_may_stay_again(controller: Controller) -> None:
    workers = WorkerReuse(sweep())
    for worker in ("a", "b"):
        controller.end(workers, "quarter", worker)
    controller._actor_cache.increase_max("half")  # as Tune does for a staged trial
    workers.update([trial("half", "PENDING")])
    assert sorted(controller.flush()) == ["a", "b"]
    controller._actor_cache.decrease_max("half")
    controller.end(workers, "half", "c")
    controller.end(workers, "quarter", "d")
    assert controller.ended == []
    assert controller.flush() == []


def test_requests_are_kept_beside_no_other_that_waits() -> None:
    assert kept_requests({"quarter", "half"}, set()) == {"quarter", "half"}
    assert kept_requests({"quarter", "half"}, {"half"}) == {"half"}
    assert kept_requests({"quarter"}, {"half"}) == frozenset()
    assert kept_requests({"quarter", "half"}, {"half", "quarter"}) == frozenset()


def test_a_paused_trial_holds_no_share_of_its_gpu() -> None:
    records = Records(2, Scoring("x", True), [Device(0, "node", "0", "T4")], 1)
    records.hold("tune-0", ["t0000"], 0.5)
    live: Any = SimpleNamespace(records=records, stopping=False)
    scheduler, trial = PausingScheduler(live), SimpleNamespace(trial_id="tune-0")
    assert (scheduler.on_trial_result(None, trial, {}), records.snapshot().held) == ("CONTINUE", {0: 0.5})
    live.stopping = True
    assert (scheduler.on_trial_result(None, trial, {}), records.snapshot().held) == ("PAUSE", {0: 0.0})
