"""Tune scheduler of a sweep: it pauses trials once the sweep is to stop, and keeps the workers of a search that learns,
which wait for the next trials instead of being ended and started again."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any

from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from raygpu.engines.tune.live_sweep import LiveSweep
from raygpu.engines.tune.tune_private_api import keep_idle_workers


class PausingScheduler(FIFOScheduler):
    """Tune scheduler that pauses each trial with a checkpoint once the sweep is to stop; until then first come, first
    served. It keeps workers while the search waits for results."""

    def __init__(self, live: LiveSweep) -> None:
        super().__init__()
        self.live = live
        self.workers = WorkerReuse(live)

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        """Keep the trial's worker if the search will give more trials."""
        super().on_trial_complete(tune_controller, trial, result)
        self.workers.ended(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Pause the trial if the sweep is to stop."""
        if not self.live.stopping:
            return str(TrialScheduler.CONTINUE)
        self.live.records.release(trial.trial_id)  # Tune may start one that it has staged in its place
        return str(TrialScheduler.PAUSE)

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """Return the next trial to run; none if the sweep is to stop."""
        self.workers.update(tune_controller.get_live_trials())
        return None if self.live.stopping else super().choose_trial_to_run(tune_controller)


class WorkerReuse:
    """Decides when Tune keeps workers that have no trial.

    Tune ends a worker that has no trial, but for a single one, if no trial waits for its share of a GPU. A search that
    draws a trial once a slot is free, or waits for the results of a generation, would so lose its workers, each of
    which takes seconds to start.
    """

    def __init__(self, live: LiveSweep) -> None:
        self.live = live
        self._controller: Any = None
        self._requests: set[Any] = set()
        """Requests for resources of the workers so far."""
        self._kept: frozenset[Any] = frozenset()
        """Requests whose idle workers Tune keeps."""

    def ended(self, controller: Any, trial: Any) -> None:
        """Note the trial's worker, just before Tune decides on it. controller: of Tune."""
        self._controller = controller
        self._requests.add(trial.placement_group_factory)
        self.update(controller.get_live_trials())

    def update(self, trials: Iterable[Any]) -> None:
        """Keep idle workers, or let them go. trials: those of Tune that have not ended."""
        if self._controller is None or not self.live.config.search.learns:
            return
        is_over = self.live.stopping or len(self.live.trials) >= self.live.records.num_trials
        waiting = {trial.placement_group_factory for trial in trials if trial.status == "PENDING"}
        idle_requests = frozenset() if is_over else kept_requests(self._requests, waiting)
        for request in idle_requests ^ self._kept:
            keep_idle_workers(self._controller, request, keep=request in idle_requests)
        self._kept = idle_requests


def kept_requests(requests: Iterable[Any], waiting: Set[Any]) -> frozenset[Any]:
    """Return the requests whose idle workers stay: those beside which no trial waits for another one, since an idle
    worker would hold what it needs."""
    return frozenset(request for request in requests if waiting <= {request})
