"""A sweep under way: its folder, its records, its runs in MLflow, and the trials."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raygpu.cli.command import INCOMPLETE, incomplete
from raygpu.cli.set_view import single_line, verdict
from raygpu.cli.sweep_ending import ending
from raygpu.cli.sweep_view import SweepConsole
from raygpu.devices import disk
from raygpu.devices.host import num_cpus
from raygpu.engines.cluster import orphan_processes, ray_files
from raygpu.errors import BadInput, RaygpuError, TrackingError, one_line
from raygpu.experiment import num_samples
from raygpu.planning.gpu_shares import ArrayPlan
from raygpu.planning.sweep_plan import Decision
from raygpu.planning.sweep_schedule import schedule_of
from raygpu.records.clock import Stages
from raygpu.records.run_directory import RunDirectory
from raygpu.records.score_on_test import TEST, ScoreOnTest
from raygpu.records.timeline import Timeline
from raygpu.records.trial_records import Records
from raygpu.search.generations import Generations
from raygpu.search.repeats import Repetition
from raygpu.search.scoring import Scoring
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import Trial
from raygpu.storage import StorageError
from raygpu.workflow.compared_data import compared_data
from raygpu.workflow.fault_advice import failure_advice
from raygpu.workflow.report_libraries import imported_early
from raygpu.workflow.resumed_runs import SETS, begun_sets, begun_sweep, write_changes
from raygpu.workflow.run_folder import ready_folder
from raygpu.workflow.run_presentation import note_plan, presentation
from raygpu.workflow.run_report import write_report_of
from raygpu.workflow.summary import best_record, summarize, write_files
from raygpu.workflow.trial_groups import Grouped
from raygpu.workflow.user_code import Problem
from raygpu.workflow.validation import Prepared
from raygpu.workflow.winner_score import scored_once, winners_models

if TYPE_CHECKING:
    from raygpu.engines.cluster.cluster import Cluster
    from raygpu.engines.cluster.mps_daemons import Daemons
    from raygpu.engines.tune.sweep_context import SweepContext
    from raygpu.tracking.opening import StoreOpening

NUM_BEST = 5
"""Number of trials, or sets, in the table at the end."""


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The result of a sweep."""

    summary: dict[str, Any]
    """The content of `summary.json`; empty for a dry run."""
    folder: Path | None
    best: list[TrialRecord]
    """The five best trials; with repeats, the best one of each of the five best sets."""
    interrupted: bool = False
    failures: list[str] = field(default_factory=list)
    """The error of each failed trial in a line."""

    @property
    def exit_code(self) -> int:
        """Exit code: 0; 1 if no trial has a finite score, or if the first ones have all failed alike, which ends the
        sweep; 3 if MLflow lacks a part; 130 after Ctrl-C."""
        if self.interrupted:
            return 130
        if self.summary and (self.summary["best"] is None or self.summary.get("common_failure")):
            return 1
        return INCOMPLETE if incomplete(self.summary) else 0


@dataclass(frozen=True, slots=True)
class PlannedSweep:
    """A sweep that can begin."""

    prepared: Prepared
    found: Problem
    groups: Grouped
    decision: Decision
    plan_lines: list[str]
    """The decision in lines, as printed."""
    cluster: Cluster
    store: StoreOpening | None
    """The opening of MLflow's store; None where tracking is off."""
    source_folder: Path
    resume: RunDirectory | None
    """The folder of the sweep that goes on; None of a new one."""
    retry_failed: bool


class SweepUnderWay:
    """A sweep under way: its folder, its records, its runs in MLflow, and the trials.

    Raises BadInput where a node of the cluster does not see the sweep's folder.
    """

    def __init__(self, planned: PlannedSweep, console: SweepConsole) -> None:
        from raygpu.tracking.session import FUSED_CPU_SHARE, SweepSession
        from raygpu.tracking.writer import CPU_SHARE, CpuLimit

        prepared, decision, cluster = planned.prepared, planned.decision, planned.cluster
        config = prepared.config
        self.prepared, self.found, self.groups, self.decision = prepared, planned.found, planned.groups, decision
        self.config, self.cluster, self.console = config, cluster, console
        self.resuming, self.retry_failed = planned.resume is not None, planned.retry_failed
        self.folder = self._begun_folder(planned.resume, planned.source_folder)
        self.earlier_front = self._earlier_front()
        if not isinstance(decision.plan, ArrayPlan) and Generations.of(config, in_arrays=False) is None:
            prepared.sampler.end_generations()
        num_trials = prepared.sampler.num_trials
        schedule = schedule_of(decision, config, num_trials)
        scoring, repetition = Scoring.of(config), Repetition.of(config)
        self.records = Records(num_trials, scoring, cluster.devices, config.epochs, schedule, repetition)
        self.records.time_budget_s = config.time_budget_s
        # Of an array hundreds of trials run at once and end together, so writing keeps pace with them.
        cpus = CpuLimit(FUSED_CPU_SHARE if isinstance(decision.plan, ArrayPlan) else CPU_SHARE, num_cpus())
        self.timeline = Timeline(self.folder.timeline, config.metric)
        note_plan(self.folder, config, planned.found.source, planned.plan_lines)
        shown = presentation(config, self.folder, None)
        self.store = planned.store
        tree = self.store.tree if self.store is not None else None
        self.session = SweepSession(config, self.folder, tree, cpus=cpus, presentation=shown)
        self.stages = Stages()
        self.checkpoints: dict[str, str] = {}
        self.summary: dict[str, Any] = {}
        self.interrupted = False
        cluster.tell_address(console.line)
        console.line(self.session.address_line())

    def _begun_folder(self, resume: RunDirectory | None, source_folder: Path) -> RunDirectory:
        """Return a folder that all nodes see, with the files for a resume."""
        with ready_folder(self.config, resume, self.cluster, self.console.warn) as folder:
            if resume is None:
                folder.write_config(self.config, source_folder)
                folder.write_run({"gpu": self.decision.settled(self.config.gpu), **begun_sweep(folder)})
            else:
                if (sets := begun_sets(folder)) is not None:
                    folder.write_run({SETS: sets})  # before the configuration has another number
                write_changes(folder, self.config)
                if sets is None:  # it has not begun yet
                    folder.write_run(begun_sweep(folder))
            self.console.warnings(compared_data(folder, self.found.splits, self.found.test))
        return folder

    def run(self, stages: Stages) -> None:
        """Run all trials, to their end or Ctrl-C; delete a sweep that failed before the first score.

        stages: receives the end of the trials.
        """
        from raygpu.engines.cluster.cluster import spare_from_collections
        from raygpu.engines.cluster.mps_daemons import daemons
        from raygpu.engines.cluster.prometheus import SweepExporter
        from raygpu.engines.tune.sweep_monitor import SweepMonitor

        self.stages = stages
        cluster, records, session, console = self.cluster, self.records, self.session, self.console
        exporter = SweepExporter(self.folder.name, records)
        synthetic, alone = self.config.data.synthetic, self._alone()
        console.start(cluster.devices, records.snapshot, synthetic=synthetic, alone=alone)
        try:
            with (
                daemons(cluster.devices, console.warn, wanted=self.decision.mps and cluster.local) as mps,
                SweepMonitor(records, cluster, session.writer, self.timeline, console.update, exporter.update),
                imported_early(lambda: bool(records.by_id)),
            ):
                spare_from_collections()
                self._require_mps(mps)
                context = self._context(mps, self._leave)
                self._run_trials(context)
        except StorageError:  # what waits is for --resume
            session.writer.close(0)
            with suppress(StorageError):
                self.folder.publish()
            raise
        except (BadInput, KeyboardInterrupt) as end:
            if not self.resuming and not records.any_scored():  # as if nothing had been started
                session.discard()
                self.folder.remove()
                raise
            session.writer.close(0)  # what waits lies in the run's folder
            self.folder.publish()
            if isinstance(end, TrackingError):
                raise TrackingError(f"{end}; go on with: {self.folder.resumed_by('sweep')}") from end
            if isinstance(end, BadInput):
                raise
            raise KeyboardInterrupt(f"interrupted; go on with: {self.folder.resumed_by('sweep')}") from None
        finally:
            console.stop(records.snapshot())
        self._summarize(context.arrays_s)
        self._score_winner(context)
        exporter.finish(records.snapshot())

    def _summarize(self, arrays_s: Mapping[str, float]) -> None:
        """End the records and the trials' runs in MLflow, and sum up."""
        from raygpu.tracking.left_open import end_left_open

        records = self.records
        is_short = records.interrupt(self.session.writer.end)
        self.interrupted = is_short and records.hopeless is None and not records.out_of_time
        self.stages.end("trials")
        if (fault := self.timeline.close()) is not None:
            self.console.warn(fault)
        self.summary = summarize(
            self.config,
            self.decision,
            self.records,
            self.cluster,
            self.stages,
            self.session.identity(interrupted=self.interrupted),
            arrays_s,
        )
        self._take_noted_score()
        if self.resuming:
            sets = records.sets() if not records.repetition.is_single else []
            self.console.lines(end_left_open(self.session, list(records.by_id.values()), sets))
        self._log_incomplete_sets()
        self._tag_front()
        self.session.writer.finish()  # what waits is delivered while Ray ends

    def _take_noted_score(self) -> None:
        """Add the winner's score on the test data to the summary, if an earlier start has made it."""
        best, noted = best_record(self.records), ScoreOnTest.read(self.folder.read_run().get(TEST))
        if best is None or noted is None:
            return
        if noted.is_of(winners_models(self.folder, self.records, best, self.checkpoints)[1]):
            self.summary[TEST] = noted.as_dict()

    def _score_winner(self, context: SweepContext) -> None:
        """Score the winner of a sweep that has ended on the test data, if there is any; Ray is still there."""
        from raygpu.engines.tune.engine import score_winner

        best, tested = best_record(self.records), self.found.test
        if self.interrupted or best is None or tested is None:
            return
        models, trained = winners_models(self.folder, self.records, best, self.checkpoints)
        score = partial(score_winner, context, self.decision.plan, tested, say=self.console.warn)
        test_score = scored_once(self.folder, tested, models, score, self.console.warn, trained, self.config.folds)
        self.summary[TEST] = test_score.as_dict() if test_score is not None else self.summary.get(TEST)
        self.stages.end(TEST)

    def _log_incomplete_sets(self) -> None:
        """Log the mean scores of sets that lack trainings; those of the others are logged when they end."""
        for each in self.records.sets() if not self.records.repetition.is_single else []:
            for record in each.trials if not each.is_complete else []:
                self.session.writer.metrics(record.trial.trial_id, each.metrics())

    def _earlier_front(self) -> frozenset[str]:
        """Return the trials that were on the Pareto front at the end of an earlier start; none if its summary cannot be
        read, which is written anew."""
        if len(self.config.metrics) < 2:
            return frozenset()
        try:
            return frozenset(each["trial_id"] for each in (self.folder.read_last_summary() or {}).get("front", ()))
        except (BadInput, KeyError, TypeError):
            return frozenset()

    def _tag_front(self) -> None:
        """Tag the trials' runs of the Pareto front, and those that were on it at the end of an earlier start."""
        front = {record.trial.trial_id for record in self.records.front()}
        for name in sorted(front | self.earlier_front, key=Trial.order):
            self.session.writer.tag(name, {"raygpu.front": "true" if name in front else "false"})

    def _leave(self, checkpoints: Mapping[str, str]) -> None:
        """Write the results of an interrupted sweep, and end this process without Ray."""
        code = 1
        try:
            if self.resuming and not self.records.by_id:
                raise RaygpuError("interrupted before the sweep's state was restored; the saved state is unchanged")
            self.console.stop(self.records.snapshot())
            self.checkpoints = dict(checkpoints)
            self._summarize({})
            code = self.finish().exit_code
        except Exception as error:  # noqa: BLE001 - nothing comes after this thread
            again = self.folder.resumed_by("sweep")
            self.console.warn(f"the results are not complete: {one_line(error)}; go on with: {again}")
        orphan_processes.end()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def _alone(self) -> dict[int, float]:
        """Return the measured samples/s of one training at a time, by GPU; without GPUs for which it is not known."""
        cluster = self.cluster
        rates = {d.index: self.decision.alone_samples_per_s(cluster.node_of(d).device_type) for d in cluster.devices}
        return {index: rate for index, rate in rates.items() if rate is not None}

    def _require_mps(self, mps: Daemons) -> None:
        """Raise BadInput if several processes were planned for a GPU that takes one, and MPS did not start."""
        for node in self.cluster.nodes:
            if self.decision.mps and not mps.access and node.refusal is not None:
                raise BadInput(
                    f"gpu.mps: on, but there is none; {node.refusal}; --gpu.mps off trains one trial at a time"
                )

    def _context(self, mps: Daemons, leave: Callable[[Mapping[str, str]], None]) -> SweepContext:
        """Return the engine's input. leave: ends this process with the results."""
        from raygpu.engines.tune.sweep_context import SweepContext

        return SweepContext(
            config=self.config,
            source=self.found.source,
            splits=self.found.splits,
            folds=self.found.folds,
            sampler=self.prepared.sampler,
            cluster=self.cluster,
            records=self.records,
            writer=self.session.writer,
            timeline=self.timeline,
            folder=self.folder,
            mps=mps,
            say=self.console.line,
            warn=self.console.warn,
            detail=self.console.detail if self.console.is_verbose else None,
            leave=leave,
            retry_failed=self.retry_failed,
            read=self.groups.read,
            needs=self.decision.needs(),
            store_fault=lambda: self.store.fault if self.store is not None else None,
        )

    def _run_trials(self, context: SweepContext) -> None:
        """Run the planned trials under Tune."""
        from raygpu.engines.tune import engine

        grouper = self.groups.grouper if isinstance(self.decision.plan, ArrayPlan) else None
        self.checkpoints = engine.run(context, self.decision.plan, grouper, resume=self.resuming)

    def begin_end_of_ray(self) -> None:
        """Let Ray end while `finish` writes the results; wait for its end where a script's processes may still write
        files."""
        self.cluster.begin_close()
        if self.config.command is not None:
            self.cluster.close()

    def finish(self) -> SweepResult:
        """Write the results' files, end the runs in MLflow, and print the end."""
        self.stages.end("ray_end")
        disk.wait_and_say(ray_files.disks(self.folder.path), self.console.warn, lambda: self.interrupted)
        try:
            lines = write_files(self.folder, self.config, self.found, self.records, self.checkpoints, self.summary)
            self.console.warnings(lines)
            self.stages.end("files")
            self.session.deliver(self.console.line)
            self.stages.end("delivery")
            self.summary["stages_s"] = self.stages.rounded()
            self.folder.write_summary(self.summary)
            report = write_report_of(self.folder, self.console.warn)
        except OSError as error:
            if not disk.is_full(error):
                raise
            after = f"free some space, then go on with: {self.folder.resumed_by('sweep')}"
            raise RaygpuError(f"{self.folder.path}: {error.strerror}; {after}") from error
        finally:
            try:
                self.session.presentation = presentation(self.config, self.folder, self.summary)
                said = self.session.close(self.summary, interrupted=self.interrupted, say=self.console.line)
                self.console.warnings(said)
            finally:
                self.folder.hand_over()
        best, failures = self._show_best(), self.records.failures()
        where = [failure_advice(failures, self.found.source.kind), self.session.next_line(), *report]
        self.console.results(ending(self.summary, failures, self.folder, where, self.interrupted))
        return SweepResult(self.summary, self.folder.path, best, self.interrupted, failures)

    def _show_best(self) -> list[TrialRecord]:
        """Print the table of the five best trials, or sets, and what can be said of the best one; return the trials."""
        metric, records, has_best = self.config.metric, self.records, self.summary["best"] is not None
        if records.repetition.is_single:
            ranked, splits = records.ranked(), self.found.splits
            if has_best:
                self.console.best(metric, ranked[:NUM_BEST])
                self.console.front(self.summary)
                num_validation = (
                    num_samples(splits.validation_inputs)
                    if splits is not None and not self.config.data.synthetic
                    else None
                )
                line = single_line(records.scoring, ranked, num_validation)
                self.console.results([line] if line is not None else [])
            return ranked[:NUM_BEST]
        sets = records.sets()
        if has_best:
            self.console.best_sets(metric, records.scoring.score_rule, sets[:NUM_BEST])
            self.console.results(verdict(sets, self.summary))
        return [each.best for each in sets[:NUM_BEST] if each.best is not None]
