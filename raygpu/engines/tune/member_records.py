"""The members of a sweep's arrays as their reports come in: their records, MLflow runs, curves and the population."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from raygpu.engines.tune import trial_lines
from raygpu.engines.tune.array_config import ArrayConfig
from raygpu.engines.tune.live_sweep import LiveSweep
from raygpu.engines.tune.member_report import Beginning, MemberReport
from raygpu.errors import error_line
from raygpu.records import population_file
from raygpu.search.lineage import described
from raygpu.search.scoring import bounded
from raygpu.search.trial_record import Change, Status
from raygpu.search.trials import EpochResult

MOST_TAG = 4000
"""Largest number of characters in a tag of MLflow, well below its limit."""
FEW = 3
"""Fewest failed trials that end a sweep."""


class MemberRecords:
    """Records of arrays' members, kept in step in raygpu's records, MLflow, the timeline and the sweep's actors.

    A trial alone is an array of one.
    """

    def __init__(self, live: LiveSweep) -> None:
        self.live = live
        self._told_bound = False
        """Whether a line has told that a score was bounded."""

    def start(self, config: ArrayConfig) -> None:
        """Start the records of an array's members, and begin or restart their MLflow runs."""
        for name in config.trial_ids:
            if self.live.is_complete(name):
                continue  # its array goes on without it
            record = self.live.records.by_id.get(name)
            started = self.live.trials[name]
            self.live.records.start(started)
            if record is not None and record.ended:
                self.forget([name])
                self.live.timeline.go_back(name, 0)
                self.live.writer.restart(started)
            elif record is None and self.live.is_resumed:
                self.live.writer.restart(started)  # it may have begun after the last snapshot, with other values
            else:
                self.live.writer.begin(started)

    def add(self, config: ArrayConfig, reports: list[MemberReport], gpu_index: int | None) -> None:
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
                    self.end(report.trial_id, report.status, reason=reason)
                else:  # it has ended once its last checkpoint is saved
                    self.live.ending[report.trial_id] = report.status, reason

    def end(self, trial_id: str, status: Status, *, error: str | None = None, reason: str | None = None) -> None:
        """End a trial's record and its MLflow run."""
        record = self.live.records.end(trial_id, status, error=error, reason=reason)
        self.leave([trial_id], ended=True)
        self.live.writer.end(record)
        if record.trial.repeat is not None and (trial_set := self.live.records.set_of(record.trial.set_id)).is_complete:
            for each in trial_set.trials:
                self.live.writer.metrics(each.trial.trial_id, trial_set.metrics())
        self.detail(lambda: trial_lines.ended(record, self.live.config.metric))

    def fail(self, config: ArrayConfig, error: str, *, divided: bool = True) -> None:
        """Record the failure of the trials that have not ended; not after an interrupt, which workers may get too.

        divided: whether an array's trials go on in smaller parts instead.
        """
        if self.live.interrupts.count:
            return  # they run again with --resume
        error = trial_lines.printable(error)
        ids = [name for name in config.trial_ids if not self.live.is_complete(name)]
        self.leave(ids, ended=False)
        if config.fused and divided:
            why = error_line(error)
            self.live.warn(f"{trial_lines.named(config)} failed ({why}); its {len(ids)} trials go on in smaller parts")
            return
        for name in ids:
            if name not in self.live.records.by_id:  # lost before it had begun
                self.live.records.start(self.live.trials[name])
                self.live.writer.begin(self.live.trials[name])
            self.end(name, "failed", error=error)
        if self.live.config.fail_fast:
            self.live.records.hopeless = self.live.records.common_failure(max(FEW, self.live.at_once))

    def train_alone(self, config: ArrayConfig, reason: str) -> None:
        """Restart all members of an array, ended ones too, because they differ from the same trials trained alone."""
        live, names = self.live, config.trial_ids
        assert live.grouper is not None
        live.warn(f"{config.name}: {reason}; its {len(names)} trials are trained alone, from the beginning")
        live.grouper.refuse(live.trials[names[0]], reason)
        for name in names:
            if name in live.records.by_id:
                live.records.end(name, "failed", error=reason)
        live.checkpoints.forget(names)
        self.forget(list(names))
        self.follow(names)  # there may be fewer slots than trials

    def leave(self, names: Sequence[str], *, ended: bool) -> None:
        """Tell the population, if there is one, that trials are not under way. ended: whether for good."""
        if self.live.population is not None and names:
            self.live.population.leave.remote(list(names), ended)

    def follow(self, names: Sequence[str]) -> None:
        """Tell the population, if there is one, that trials are given again, and may have to wait for a free slot."""
        if self.live.population is not None:
            self.live.population.follow.remote(list(names))

    def forget(self, names: list[str]) -> None:
        """Let the stopping rule and the population forget trials that failed and are trained again."""
        for actor in self.actors().values():
            with unless_lost():
                ray.get(actor.forget.remote(names))

    def actors(self) -> dict[str, Any]:
        """Return the actors of the sweep's stopping rule and of its population, if it has them, by name."""
        actors = {"rule": self.live.rule, "population": self.live.population}
        return {name: actor for name, actor in actors.items() if actor is not None}

    def detail(self, line: Callable[[], str]) -> None:
        """Show a line to a user who wants details; it is made for that user alone."""
        if self.live.detail is not None:
            self.live.detail(line())

    def _go_back(self, name: str, beginning: Beginning) -> None:
        """Drop what an earlier attempt has reported after the epoch from which this one goes on."""
        live, epoch = self.live, beginning.epoch
        was_noted = live.timeline.go_back(name, epoch)
        if not live.records.go_back(name, epoch, beginning.scores) and not was_noted:
            return
        self.detail(lambda: trial_lines.went_back(name, epoch))
        if not epoch:
            live.checkpoints.forget([name])
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
        self.detail(lambda: f"{name} {described(change, before)}")

    def _tell_bound(self, name: str, epochs: Sequence[EpochResult]) -> None:
        """Warn, once in a sweep, of a metric that is too large to be computed with as a score."""
        for epoch in epochs if not self._told_bound else ():
            for metric, value in self.live.records.scoring.beyond(epoch.metrics).items():
                self._told_bound = True
                self.live.warn(f"{name}: {metric}: read {value:.6g}; as a score it counts as {bounded(value):g}")
                return


@contextmanager
def unless_lost() -> Iterator[None]:
    """Pass over an actor that was lost, of which the workers tell; raise the errors of its code."""
    try:
        yield
    except RayTaskError:
        raise
    except RayError:
        pass
