"""Tune callback that keeps the run's timeline: who held which share of which GPU, and the trials' curves."""

from __future__ import annotations

from typing import Any

from ray import tune

from raygpu.engines.tune.array_config import ArrayConfig
from raygpu.engines.tune.live_sweep import LiveSweep


class TimelineCallback(tune.Callback):
    """Tune callback that writes the sweep's timeline. It stands before the one that empties the results."""

    def __init__(self, live: LiveSweep) -> None:
        self.live = live

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Note that a Tune trial holds its share from now on."""
        config = ArrayConfig.of(trial.config)
        self.live.timeline.hold(trial.trial_id, config.name, config.trial_ids, config.share.fraction)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Note the GPU and the new epochs."""
        self.live.timeline.place(trial.trial_id, self.live.cluster.device_index(result["node_id"], result["gpu_ids"]))
        for member in result["members"]:
            self.live.timeline.epochs(member.trial_id, member.epochs)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Note that a Tune trial has ended by itself."""
        failed = (trial.last_result or {}).get("failure") is not None
        self.live.timeline.release(trial.trial_id, "error" if failed else "complete")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Note that a Tune trial's worker was lost once too often, or ended by a limit of time."""
        self.live.timeline.release(trial.trial_id, "lost")

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Note that a Tune trial's worker was lost."""
        self.live.timeline.release(trial.trial_id, "lost")
