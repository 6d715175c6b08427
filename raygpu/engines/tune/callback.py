"""Tune callbacks that pass a sweep's events to raygpu's records and to MLflow, without blocking Tune's event loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import ray
from ray import tune

from raygpu.engines.tune import trial_lines
from raygpu.engines.tune.array_config import ArrayConfig
from raygpu.engines.tune.live_sweep import LiveSweep
from raygpu.engines.tune.member_records import MemberRecords, unless_lost
from raygpu.engines.tune.member_report import MemberReport
from raygpu.records.timeline import End
from raygpu.search.trials import joint_rate


class ResourceUpdate(tune.Callback):
    """Update the resource requests of a resumed sweep's trials: Tune keeps those made to an earlier Ray.

    The search hears what Tune has under way: their states may be of two moments.
    """

    def __init__(self, live: LiveSweep) -> None:
        self.live = live
        self._done = False

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Update the requests of all pending trials, at Tune's first step only."""
        if self._done or self.live.resources is None:
            return
        self._done = True
        if self.live.take_back is not None:
            under_way = [trial for trial in trials if not trial.is_finished()]
            self.live.take_back({trial.trial_id: ArrayConfig.of(trial.config) for trial in under_way})
        for trial in trials:
            if trial.status == "PENDING":
                wanted = self.live.resources(trial.config)
                if wanted != trial.placement_group_factory:
                    trial.update_resources(wanted)


class ArrayCallback(tune.Callback):
    """Tune callback that keeps the records of arrays' members, and writes them to MLflow and to the run's timeline.

    Its saved state gives a resumed sweep the records, the checkpoints and the stopping rule's scores, which
    `Tuner.restore` alone forgets (ray-project/ray#30838).
    """

    def __init__(self, live: LiveSweep) -> None:
        self.live = live
        self.members = MemberRecords(live)
        self._actor_states: dict[str, Any] = {"rule": None, "population": None}
        """Last known state of each actor."""
        self._placed: set[str] = set()
        """Tune trials that have reported where they run."""
        self._under_way: dict[str, int] = {}
        """Number of trials that each Tune trial trains."""
        self._has_stepped = False

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Note at Tune's first step, when all of an earlier start's state is restored, that the sweep goes on."""
        if not self._has_stepped:
            self._has_stepped = True
            self.live.run_directory.begin_again()

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Start the members' records, and begin or restart their MLflow runs."""
        config = ArrayConfig.of(trial.config)
        self.live.records.hold(trial.trial_id, config.trial_ids, config.share.fraction)
        self.live.timeline.hold(trial.trial_id, config.name, config.trial_ids, config.share.fraction)
        self._under_way[trial.trial_id] = len(config.trial_ids)
        self.members.detail(lambda: trial_lines.began(config, self.live.trials[config.trial_ids[0]].hyperparameters))
        self.members.start(config)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Record and log the members' new epochs and ends; retrain members alone, or enlarge a share, if needed."""
        live, config = self.live, ArrayConfig.of(trial.config)
        for say, lines in ((live.say, result["lines"]), (live.warn, result["warnings"])):
            for line in lines:
                say(f"{trial_lines.named(config)}: {trial_lines.printable(line)}")
        live.records.spend(result["seconds"])
        if config.fused:
            for activity, seconds in result["seconds"].items():
                live.seconds[activity] = live.seconds.get(activity, 0.0) + seconds
            live.records.prepare(trial.trial_id, sum(result["seconds"].get(name, 0.0) for name in ("members", "probe")))
        else:
            live.pids[config.trial_ids[0]] = result["pid"]
        if result["lost_actor"] is not None and live.lost_actor is None:
            live.lost_actor = result["lost_actor"]
            live.warn(f"{live.lost_actor}; go on with: {live.run_directory.resumed_by('sweep')}")
        if result["unknown_metric"] is not None:
            if not live.records.any_scored():
                live.unknown_metric = result["unknown_metric"]
            return
        gpu_index = live.cluster.device_index(result["node_id"], result["gpu_ids"])
        live.timeline.place(trial.trial_id, gpu_index)
        live.records.charge(trial.trial_id, config.trial_ids, gpu_index, config.share.fraction)
        self._tell_place(trial.trial_id, config, gpu_index, result)
        rate = joint_rate(report.epochs for report in result["members"])
        live.records.report(trial.trial_id, *epochs_of(result["members"]), gpu_index, rate)
        self.members.add(config, result["members"], gpu_index)
        self._tell_width(trial.trial_id, config)
        if result["not_as_alone"] is not None:
            self.members.train_alone(config, result["not_as_alone"])
        if result["out_of_memory"] and not config.fused:
            live.enlarge(config)
            self.members.follow([name for name in config.trial_ids if name in live.enlarged])
        for key in ("members", "lines", "warnings"):
            result[key] = []  # Tune need not carry them in its snapshots

    def _tell_place(self, holder: str, config: ArrayConfig, gpu_index: int | None, result: dict[str, Any]) -> None:
        if holder not in self._placed:
            self._placed.add(holder)
            self.members.detail(lambda: trial_lines.placed(config, gpu_index, result, local=self.live.cluster.local))

    def _tell_width(self, holder: str, config: ArrayConfig) -> None:
        """Tell that an array goes on with fewer trials."""
        before = self._under_way.get(holder, 0)
        ids = [name for name in config.trial_ids if not self.live.records.by_id[name].ended] if before > 1 else []
        if ids and len(ids) < before:
            self._under_way[holder] = len(ids)
            self.members.detail(lambda: trial_lines.compacted(config, before, ids))

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Handle a failed array or trial; members that ended regularly are recorded by `on_trial_result`."""
        result, config = trial.last_result or {}, ArrayConfig.of(trial.config)
        self._release(trial, "complete" if result.get("failure") is None else "error")
        if self.live.enlarged.pop(config.trial_ids[0], None) is not None:
            return  # the searcher gives it again
        if (ending := self.live.ending.pop(config.trial_ids[0], None)) is not None:
            self._charge(trial)
            status, reason = ending
            self.members.end(config.trial_ids[0], status, reason=reason)
        failure = result.get("failure") or result.get("unknown_metric")
        if failure is not None and self.live.unknown_metric is None and result.get("not_as_alone") is None:
            self.members.fail(config, failure)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Handle an array or trial whose worker was lost more often than `cluster.max_failures` allows, or was ended
        by a limit of time."""
        config = ArrayConfig.of(trial.config)
        self._release(trial, "lost")
        self._forget_report(config)
        overdue = self.live.overdue.pop(trial.trial_id, None)
        if trial.trial_id in self.live.given_again:
            self.members.leave([name for name in config.trial_ids if not self.live.is_complete(name)], ended=False)
            self.live.records.retries += 1
            self._charge(trial)
        elif overdue is not None:
            self._charge(trial)
            self.members.fail(config, overdue.text, divided=not overdue.ends_members)
        else:
            self.members.fail(config, str(trial.get_error() or "the worker was lost"))

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Count the retry after a lost worker, and charge the members for the GPU time since the last charge."""
        self.live.records.retries += 1
        self.live.count_loss(trial.config["trial_ids"][0])
        self._forget_report(ArrayConfig.of(trial.config))
        self._charge(trial)
        self._release(trial, "lost")

    def _release(self, trial: Any, end: End) -> None:
        """Note that a Tune trial has given its share of a GPU back."""
        self.live.records.release(trial.trial_id)
        self.live.timeline.release(trial.trial_id, end)

    def _forget_report(self, config: ArrayConfig) -> None:
        """Forget the last report of a trial alone whose worker was lost before its last checkpoint was saved."""
        self.live.ending.pop(config.trial_ids[0], None)
        self.live.enlarged.pop(config.trial_ids[0], None)

    def _charge(self, trial: Any) -> None:
        """Charge the members under way for the GPU time since the last charge."""
        records, config = self.live.records, ArrayConfig.of(trial.config)
        names = [name for name in config.trial_ids if name in records.by_id]
        gpu_index = next((records.by_id[name].gpu_index for name in names), None)
        records.charge(trial.trial_id, names, gpu_index, config.share.fraction)

    def on_checkpoint(self, iteration: int, trials: list[Any], trial: Any, checkpoint: Any, **info: Any) -> None:
        """Note the URIs of the kept members' checkpoints, and of the array's for the members under way."""
        self.live.checkpoints.add(checkpoint.path, trial.config["trial_ids"], trial.last_result)

    def get_state(self) -> dict[str, Any]:
        """Return the records, the checkpoints, the stopping rule and the population for a resumed sweep."""
        for name, actor in self.members.actors().items():
            with unless_lost():  # its last state counts
                self._actor_states[name] = ray.get(actor.state.remote())
        return {"records": self.live.records.state(), **self.live.checkpoints.state(), **self._actor_states}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the saved state; called by a resumed sweep before any trial starts."""
        self.live.records.restore(state["records"])
        self.live.checkpoints.restore(state)
        for name, actor in self.members.actors().items():
            if state.get(name) is not None:
                ray.get(actor.restore.remote(state[name]))


def epochs_of(reports: Sequence[MemberReport]) -> tuple[list[float], float | None]:
    """Return the number of trials that trained in each epoch of an array's report, and the seconds of training; None if
    unknown. Epochs of the same number are trained side by side."""
    train_s: dict[int, float | None] = {}
    widths: Counter[int] = Counter()
    for report in reports:
        for result in report.epochs:
            widths[result.epoch] += 1
            train_s[result.epoch] = result.train_s
    seconds = [each for each in train_s.values() if each is not None]
    return [float(widths[epoch]) for epoch in train_s], sum(seconds) if len(seconds) == len(train_s) else None
