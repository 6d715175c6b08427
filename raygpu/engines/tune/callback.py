"""Tune callbacks that pass a sweep's events to raygpu's records and to MLflow, without blocking Tune's event loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray import tune
from ray.exceptions import RayError, RayTaskError

from raygpu.engines.tune import trial_lines
from raygpu.engines.tune.array_config import ArrayConfig
from raygpu.engines.tune.live_sweep import LiveSweep
from raygpu.engines.tune.member_report import Beginning, MemberReport
from raygpu.engines.tune.saved_state import moved
from raygpu.errors import error_line
from raygpu.records import population_file
from raygpu.records.run_directory import MEMBERS
from raygpu.records.timeline import End
from raygpu.search.lineage import described
from raygpu.search.scoring import bounded
from raygpu.search.trial_record import Change, Status
from raygpu.search.trials import EpochResult, joint_rate

MOST_TAG = 4000
"""Largest number of characters in a tag of MLflow, well below its limit."""
FEW = 3
"""Fewest failed trials that end a sweep."""


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
        self._actor_states: dict[str, Any] = {"rule": None, "population": None}
        """Last known state of each actor."""
        self._placed: set[str] = set()
        """Tune trials that have reported where they run."""
        self._under_way: dict[str, int] = {}
        """Number of trials that each Tune trial trains."""
        self._has_stepped = False
        self._told_bound = False
        """Whether a line has told that a score was bounded."""

    def _detail(self, line: Callable[[], str]) -> None:
        if self.live.detail is not None:
            self.live.detail(line())

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
        self._detail(lambda: trial_lines.began(config, self.live.trials[config.trial_ids[0]].hyperparameters))
        for name in config.trial_ids:
            if self.live.is_complete(name):
                continue  # its array goes on without it
            record = self.live.records.by_id.get(name)
            started = self.live.trials[name]
            self.live.records.start(started)
            if record is not None and record.ended:
                self._forget([name])
                self.live.timeline.go_back(name, 0)
                self.live.writer.restart(started)
            elif record is None and self.live.is_resumed:
                self.live.writer.restart(started)  # it may have begun after the last snapshot, with other values
            else:
                self.live.writer.begin(started)

    def _forget(self, names: list[str]) -> None:
        """Let the stopping rule and the population forget trials that failed and are trained again."""
        for actor in self._actors().values():
            with _unless_lost():
                ray.get(actor.forget.remote(names))

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
        self._record_members(config, result["members"], gpu_index)
        self._tell_width(trial.trial_id, config)
        if result["not_as_alone"] is not None:
            self._train_alone(config, result["not_as_alone"])
        if result["out_of_memory"] and not config.fused:
            live.enlarge(config)
        for key in ("members", "lines", "warnings"):
            result[key] = []  # Tune need not carry them in its snapshots

    def _tell_place(self, holder: str, config: ArrayConfig, gpu_index: int | None, result: dict[str, Any]) -> None:
        if holder not in self._placed:
            self._placed.add(holder)
            self._detail(lambda: trial_lines.placed(config, gpu_index, result, local=self.live.cluster.local))

    def _tell_width(self, holder: str, config: ArrayConfig) -> None:
        """Tell that an array goes on with fewer trials."""
        before = self._under_way.get(holder, 0)
        ids = [name for name in config.trial_ids if not self.live.records.by_id[name].ended] if before > 1 else []
        if ids and len(ids) < before:
            self._under_way[holder] = len(ids)
            self._detail(lambda: trial_lines.compacted(config, before, ids))

    def _end(self, trial_id: str, status: Status, *, error: str | None = None, reason: str | None = None) -> None:
        """End a trial's record and its MLflow run."""
        record = self.live.records.end(trial_id, status, error=error, reason=reason)
        self._leave([trial_id], ended=True)
        self.live.writer.end(record)
        if record.trial.repeat is not None and (trial_set := self.live.records.set_of(record.trial.set_id)).is_complete:
            for each in trial_set.trials:
                self.live.writer.metrics(each.trial.trial_id, trial_set.metrics())
        self._detail(lambda: trial_lines.ended(record, self.live.config.metric))

    def _leave(self, names: Sequence[str], *, ended: bool) -> None:
        """Tell the population, if there is one, that trials are not under way. ended: whether for good."""
        if self.live.population is not None and names:
            self.live.population.leave.remote(list(names), ended)

    def _record_members(self, config: ArrayConfig, reports: list[MemberReport], gpu_index: int | None) -> None:
        """Record and log new epochs and ends of an array's members."""
        records, writer = self.live.records, self.live.writer
        for report in reports:
            record = records.by_id[report.trial_id]
            if record.ended:
                continue  # told before its worker was lost
            if report.beginning is not None:
                self._go_back(report.trial_id, report.beginning)
            if gpu_index is not None and gpu_index != record.gpu_index:
                writer.place(report.trial_id, gpu_index, config.share.fraction / len(config.trial_ids))
            self.live.timeline.epochs(report.trial_id, report.epochs)
            new = records.add(report.trial_id, report.epochs, gpu_index, report.best)
            if new:
                writer.epochs(report.trial_id, new)
                self._tell_bound(report.trial_id, new)
            for change in report.changes:
                self._note_change(report.trial_id, change)
            if report.status is not None:
                reason = report.reason and f"{report.reason} at epoch {record.epochs}"
                if config.fused:
                    self._end(report.trial_id, report.status, reason=reason)
                else:  # it has ended once its last checkpoint is saved
                    self.live.ending[report.trial_id] = report.status, reason

    def _tell_bound(self, name: str, epochs: Sequence[EpochResult]) -> None:
        """Warn, once in a sweep, of a metric that is too large to be computed with as a score."""
        for epoch in epochs if not self._told_bound else ():
            for metric, value in self.live.records.scoring.beyond(epoch.metrics).items():
                self._told_bound = True
                self.live.warn(f"{name}: {metric}: read {value:.6g}; as a score it counts as {bounded(value):g}")
                return

    def _go_back(self, name: str, beginning: Beginning) -> None:
        """Drop what an earlier attempt has reported after the epoch from which this one goes on."""
        live, epoch = self.live, beginning.epoch
        was_noted = live.timeline.go_back(name, epoch)
        if not live.records.go_back(name, epoch, beginning.scores) and not was_noted:
            return
        self._detail(lambda: trial_lines.went_back(name, epoch))
        if not epoch:
            live.checkpoints.pop(name, None)
            live.arrays.pop(name, None)
            live.writer.restart(live.trials[name])
            live.tag_too_small(name)

    def _note_change(self, name: str, change: Change) -> None:
        """Record that a trial took over another one's parameters, and tag its MLflow run."""
        live = self.live
        record = live.records.by_id[name]
        before = record.values
        if not live.records.change(name, change):
            return
        population_file.add(live.run_directory.population, name, change)
        donors = ", ".join(f"{each.donor} after epoch {each.epoch}" for each in record.changes)
        live.writer.tag(name, {"raygpu.taken_over": donors[-MOST_TAG:]})
        self._detail(lambda: f"{name} {described(change, before)}")

    def _train_alone(self, config: ArrayConfig, reason: str) -> None:
        """Restart all members of an array, ended ones too, because they differ from the same trials trained alone."""
        live, names = self.live, config.trial_ids
        assert live.grouper is not None
        live.warn(f"{config.name}: {reason}; its {len(names)} trials are trained alone, from the beginning")
        live.grouper.refuse(live.trials[names[0]], reason)
        for name in names:
            if name in live.records.by_id:
                live.records.end(name, "failed", error=reason)
            live.checkpoints.pop(name, None)
            live.arrays.pop(name, None)
        self._forget(list(names))

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Handle a failed array or trial; members that ended regularly are recorded by `on_trial_result`."""
        result, config = trial.last_result or {}, ArrayConfig.of(trial.config)
        self._release(trial, "complete" if result.get("failure") is None else "error")
        if self.live.enlarged.pop(config.trial_ids[0], None) is not None:
            return  # the searcher gives it again
        if (ending := self.live.ending.pop(config.trial_ids[0], None)) is not None:
            self._charge(trial)
            status, reason = ending
            self._end(config.trial_ids[0], status, reason=reason)
        failure = result.get("failure") or result.get("unknown_metric")
        if failure is not None and self.live.unknown_metric is None and result.get("not_as_alone") is None:
            self._failed(config, failure)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Handle an array or trial whose worker was lost more often than `cluster.max_failures` allows, or was ended
        by a limit of time."""
        config = ArrayConfig.of(trial.config)
        self._release(trial, "lost")
        self._forget_report(config)
        overdue = self.live.overdue.pop(trial.trial_id, None)
        if trial.trial_id in self.live.given_again:
            self._leave([name for name in config.trial_ids if not self.live.is_complete(name)], ended=False)
            self.live.records.retries += 1
            self._charge(trial)
        elif overdue is not None:
            self._charge(trial)
            self._failed(config, overdue.text, divided=not overdue.ends_members)
        else:
            self._failed(config, str(trial.get_error() or "the worker was lost"))

    def _failed(self, config: ArrayConfig, error: str, *, divided: bool = True) -> None:
        """Record the failure of the trials that have not ended; not after an interrupt, which workers may get too.

        divided: whether an array's trials go on in smaller parts instead.
        """
        if self.live.interrupts.count:
            return  # they run again with --resume
        error = trial_lines.printable(error)
        ids = [name for name in config.trial_ids if not self.live.is_complete(name)]
        self._leave(ids, ended=False)
        if config.fused and divided:
            why = error_line(error)
            self.live.warn(f"{trial_lines.named(config)} failed ({why}); its {len(ids)} trials go on in smaller parts")
            return
        for name in ids:
            if name not in self.live.records.by_id:  # lost before it had begun
                self.live.records.start(self.live.trials[name])
                self.live.writer.begin(self.live.trials[name])
            self._end(name, "failed", error=error)
        if self.live.config.fail_fast:
            self.live.records.hopeless = self.live.records.common_failure(max(FEW, self.live.at_once))

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
        live, result = self.live, trial.last_result
        folder = live.scratch.beside(checkpoint.path)
        if not result["failure"]:  # Tune deletes the checkpoint before this one
            for name in trial.config["trial_ids"]:
                live.checkpoints.pop(name, None)
                live.arrays.pop(name, None)
        live.checkpoints.update({name: (folder / MEMBERS / name).uri for name in result["kept"]})
        live.arrays.update(dict.fromkeys(result["under_way"], folder.uri))

    def get_state(self) -> dict[str, Any]:
        """Return the records, the checkpoints, the stopping rule and the population for a resumed sweep."""
        for name, actor in self._actors().items():
            with _unless_lost():  # its last state counts
                self._actor_states[name] = ray.get(actor.state.remote())
        return {
            "records": self.live.records.state(),
            "checkpoints": self.live.checkpoints,
            "arrays": self.live.arrays,
            **self._actor_states,
        }

    def _actors(self) -> dict[str, Any]:
        """Return the actors of the sweep's stopping rule and of its population, if it has them, by name."""
        actors = {"rule": self.live.rule, "population": self.live.population}
        return {name: actor for name, actor in actors.items() if actor is not None}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the saved state; called by a resumed sweep before any trial starts."""
        self.live.records.restore(state["records"])
        tune_folder = self.live.run_directory.tune
        self.live.checkpoints = {name: moved(uri, tune_folder) for name, uri in state["checkpoints"].items()}
        self.live.arrays = {name: moved(uri, tune_folder) for name, uri in state["arrays"].items()}
        for name, actor in self._actors().items():
            if state.get(name) is not None:
                ray.get(actor.restore.remote(state[name]))


@contextmanager
def _unless_lost() -> Iterator[None]:
    """Pass over an actor that was lost, of which the workers tell; raise the errors of its code."""
    try:
        yield
    except RayTaskError:
        raise
    except RayError:
        pass


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
