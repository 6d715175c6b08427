"""Ray Tune's schedulers, driven by hand: the reference for what stops a trial."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ray.tune.schedulers import TrialScheduler


@dataclass(frozen=True)
class FakeTrial:
    trial_id: str
    status: str = "RUNNING"


class FakeController:
    """With no trial that waits, so that none is paused for its sake."""

    def get_live_trials(self) -> list[Any]:
        return []


class Tune:
    """A scheduler, asked as raygpu's own rules are."""

    def __init__(self, scheduler: Any, trial_ids: Iterable[str], *, maximize: bool) -> None:
        assert scheduler.set_search_properties("score", "max" if maximize else "min")
        self.scheduler = scheduler
        self.trials = {trial_id: FakeTrial(trial_id) for trial_id in trial_ids}
        for trial in self.trials.values():
            scheduler.on_trial_add(FakeController(), trial)

    def decide(self, epoch: int, scores: Sequence[tuple[str, float]]) -> frozenset[str]:
        return frozenset(trial_id for trial_id, score in scores if self._stops(trial_id, epoch, score))

    def _stops(self, trial_id: str, epoch: int, score: float) -> bool:
        result = {"training_iteration": epoch, "score": score}
        return self.scheduler.on_trial_result(FakeController(), self.trials[trial_id], result) == TrialScheduler.STOP
