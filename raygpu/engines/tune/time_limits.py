"""Tune callback that ends a sweep whose time budget is used up, and trials that take too long or are not heard of."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from ray import tune

from raygpu.engines.tune.live_sweep import LiveSweep, Overdue
from raygpu.engines.tune.tune_private_api import kill_worker

STANDSTILL_S = 5.0
"""Seconds between two steps of Tune after which Tune itself was held up: they count for no trial."""


@dataclass(slots=True)
class _Clock:
    """Times of a Tune trial by the monotonic clock."""

    trial: Any
    started: float = field(default_factory=time.monotonic)
    """Time of its first start here; a lost worker does not change it."""
    heard: float = field(default_factory=time.monotonic)
    """Time of the last start or result."""


class TimeLimits(tune.Callback):
    """Tune callback that ends the sweep after `time_budget_s`, and kills the worker of a trial that exceeds
    `trial_timeout_s` or `silence_timeout_s`.

    A worker that hangs answers nothing, so it is killed from outside, and not tried again as a lost worker is.
    """

    def __init__(self, live: LiveSweep) -> None:
        self.live = live
        self._clocks: dict[str, _Clock] = {}
        """Clocks of the trials that have started, by Tune's trial id."""
        self._stepped: float | None = None

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Start the trial's clock, or go on with it in a new worker."""
        self._clocks.setdefault(trial.trial_id, _Clock(trial)).heard = time.monotonic()

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Note that the trial was heard of."""
        if (clock := self._clocks.get(trial.trial_id)) is not None:
            clock.heard = time.monotonic()

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Drop the trial's clock."""
        self._clocks.pop(trial.trial_id, None)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Drop the trial's clock."""
        self._clocks.pop(trial.trial_id, None)

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """End the sweep whose time is up, else the running trials that are overdue: a sweep's stop has a limit."""
        if self.live.records.budget_left_s() == 0.0 and not self.live.stopping:
            self.live.records.out_of_time = True
        now = time.monotonic()
        stood, self._stepped = now - self._stepped if self._stepped is not None else 0.0, now
        for name, clock in list(self._clocks.items()):
            if stood > STANDSTILL_S:
                clock.started, clock.heard = clock.started + stood, clock.heard + stood
            if clock.trial.status == "RUNNING" and not self.live.stopping:
                overdue = self._overdue(clock, now)
                if overdue is not None:
                    self._end(self._clocks.pop(name).trial, overdue)

    def _overdue(self, clock: _Clock, now: float) -> Overdue | None:
        config = self.live.config
        if config.trial_timeout_s is not None and now - clock.started > config.trial_timeout_s:
            return Overdue(f"took longer than trial_timeout_s = {config.trial_timeout_s:g}", ends_members=True)
        if config.silence_timeout_s is not None and now - clock.heard > config.silence_timeout_s:
            return Overdue(f"no epoch within silence_timeout_s = {config.silence_timeout_s:g}", ends_members=False)
        return None

    def _end(self, trial: Any, overdue: Overdue) -> None:
        self.live.overdue[trial.trial_id] = overdue
        trial.max_failures = 0
        kill_worker(trial)
