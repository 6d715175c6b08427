"""A production training under way: its folder, its history, its run in MLflow, and its workers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from raygpu.cli.formatting import duration
from raygpu.cli.training_view import TrainConsole, checkpoint_line, ending, epoch_line
from raygpu.devices import disk
from raygpu.devices.nvml import Reading
from raygpu.engines.cluster import ray_files
from raygpu.errors import RaygpuError, TrackingError
from raygpu.experiment import take
from raygpu.records.clock import Stages
from raygpu.records.run_directory import ENDED, RunDirectory
from raygpu.records.score_on_test import TEST, ScoreOnTest
from raygpu.records.scratch import fetched
from raygpu.records.training_progress import History, Progress, Restored
from raygpu.search.scoring import Scoring
from raygpu.storage import StorageError
from raygpu.training.callable.function import SAVES_LATE
from raygpu.workflow import registration, warm_start
from raygpu.workflow.compared_data import compared_data, validation_digest
from raygpu.workflow.function_state import function_state
from raygpu.workflow.resumed_runs import begun_training
from raygpu.workflow.run_folder import ready_folder
from raygpu.workflow.run_presentation import presentation
from raygpu.workflow.run_report import write_report_of
from raygpu.workflow.summary import summarize_training
from raygpu.workflow.training_curves import TrainingCurves
from raygpu.workflow.training_layout import Layout
from raygpu.workflow.user_code import Problem
from raygpu.workflow.validation import PreparedTrain
from raygpu.workflow.winner_score import scored_once

if TYPE_CHECKING:
    from raygpu.engines.cluster.cluster import Cluster
    from raygpu.engines.train.production import ProductionSetup, TrainingOutcome
    from raygpu.engines.train.worker_reports import Joined, WorkerReport
    from raygpu.tracking.runs import RunTree

READINGS_S = 2.0
"""Seconds between two readings in the timeline."""
FAILED_S = 10.0
"""Seconds for which the store may take nothing after a failure before it is given up."""


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """The result of a training."""

    summary: dict[str, Any]
    """The content of `summary.json`; empty for a dry run."""
    folder: Path | None
    """The run's folder; None for a dry run."""
    interrupted: bool


@dataclass(frozen=True, slots=True)
class PlannedTraining:
    """A training that can begin."""

    prepared: PreparedTrain
    found: Problem
    layout: Layout
    cluster: Cluster
    tree: RunTree | None
    """MLflow, as `open_store` gave it."""
    source_folder: Path
    resume: RunDirectory | None
    """The folder of the training that goes on; None of a new one."""
    warm_start: Path | None
    """Folder of a checkpoint with the initial parameters of a new training; None for new ones."""
    stages: Stages
    """The command's stages so far."""


class TrainingRun:
    """A training under way: its folder, its history, its run in MLflow, and its workers."""

    def __init__(self, planned: PlannedTraining, console: TrainConsole) -> None:
        from raygpu.tracking.session import TrainSession

        prepared, cluster = planned.prepared, planned.cluster
        config = prepared.config
        self.prepared, self.config, self.found, self.layout = prepared, config, planned.found, planned.layout
        self.cluster, self.console, self.resuming = cluster, console, planned.resume is not None
        self.folder = self._begun_folder(planned)
        self._warm_start = planned.warm_start
        assert config.epochs is not None
        self.history = History(Scoring(config.metric, config.maximize), cluster.devices, config.epochs)
        self.stages = planned.stages
        self.on_test: ScoreOnTest | None = None
        """Score on the test data; None without any."""
        splits = self.found.splits
        self._example = take(splits.validation_inputs, slice(0, registration.NUM_SAMPLES)) if splits else None
        """Inputs of a few samples, read while Ray is there, in which they may lie; None for a function."""
        self._validation = validation_digest(splits) if splits else ""
        """Digest of the validation data, made while Ray is there; empty for a function."""
        self._next_reading = 0.0
        self._readings: dict[int, Reading] = {}
        shown = presentation(config, self.folder, None)
        if self.folder.read_run().get(ENDED):
            self.folder.write_run({ENDED: None})  # an earlier start's
        self.session = TrainSession(config, self.folder, planned.tree, presentation=shown)
        self.curves = TrainingCurves(self.folder.timeline, config.metric, self.history, self.session.writer)
        self._notes: set[str] = set()
        """Workers' notes that have been printed."""
        console.lines(self.layout.lines([device.name for device in cluster.devices]))
        cluster.tell_address(console.line)
        console.line(self.session.address_line())

    def _begun_folder(self, planned: PlannedTraining) -> RunDirectory:
        with ready_folder(self.config, planned.resume, self.cluster, self.console.warn) as folder:
            if planned.resume is None:
                if planned.warm_start is not None:
                    folder.write_run({warm_start.NOTE: True})
                folder.write_config(self.config, planned.source_folder, kind="train")
                if self.layout.global_batch is not None:
                    folder.write_run({"global_batch": self.layout.global_batch})
            folder.write_run(begun_training(folder))
            self.console.warnings(compared_data(folder, self.found.splits, self.found.test))
        return folder

    def run(self) -> TrainingOutcome:
        """Train to the end, or Ctrl-C; delete a training that failed before its first checkpoint."""
        from raygpu.engines.cluster.prometheus import TrainingExporter
        from raygpu.engines.train.production import ProcessLost, ProductionRun

        config, console = self.config, self.console
        exporter = TrainingExporter(self.folder.name, self.history, lambda: self._readings)

        psutil.cpu_percent()  # the next call tells the use since this one
        console.start(self.history, synthetic=config.data.synthetic)
        try:
            running = ProductionRun(self._setup())
            with closing(iter(running)) as all_reports:
                for reports in all_reports:
                    for report in reports:
                        self._take(report)
                    self._read_gpus()
                    latest = {index: reading.metrics() for index, reading in self._readings.items()}
                    console.update(self.history, latest, self.session.writer.delayed)
                    exporter.update()
            assert running.ended is not None
            self._score_model(running.ended)
            return running.ended
        except BaseException as error:
            console.stop(self.history)
            self._abandon(error)
            if isinstance(error, KeyboardInterrupt) and self._can_go_on:
                line = f"interrupted; go on after the last checkpoint with: {self.folder.resumed_by('train')}"
                raise KeyboardInterrupt(line) from error
            if isinstance(error, ProcessLost):
                raise RaygpuError(f"{error}; go on with: {self.folder.resumed_by('train')}") from error
            raise
        finally:
            console.stop(self.history)
            self.stages.end("training")

    def _score_model(self, ended: TrainingOutcome) -> None:
        """Score the model of a training that has ended on the test data, if there is any; Ray is still there."""
        from raygpu.engines.cluster.scoring_worker import ScoringWork, scores_on_test
        from raygpu.engines.train.best_checkpoint import best_of

        tested, trial, placing = self.found.test, self.prepared.trial, self.layout.placing
        if tested is None or ended.best is None:
            return
        trained = {trial.trial_id: best_of(ended.best).epoch}  # a resume may find a better one
        noted = ScoreOnTest.read(self.folder.read_run().get(TEST))
        if ended.interrupted and not self.history.has_ended:
            self.on_test = noted if noted is not None and noted.covers(trained) else None
            return
        work = ScoringWork(
            source=self.cluster.travelled(self.found.source),
            precision=self.config.gpu.precision,
            threads=max(1, int(placing.cpus)),
            cpus=placing.cpus,
            gpus=placing.gpus,
        )
        models = {trial.trial_id: (trial, ended.best.uri)}
        score = partial(scores_on_test, work, tested, say=self.console.warn)
        self.on_test = scored_once(self.folder, tested, models, score, self.console.warn, trained)

    def _abandon(self, error: BaseException) -> None:
        from raygpu.engines.train.production import TrainingFailed

        if isinstance(error, TrainingFailed):
            self.folder.error.write_text(error.traceback, "utf-8", "backslashreplace")
        if not self._can_go_on and not isinstance(error, TrainingFailed):
            self.session.discard()
            self.folder.remove()
        else:
            if isinstance(error, KeyboardInterrupt):
                self.session.writer.close(0)
            else:
                self._end_failed()
            self.folder.publish()

    def _end_failed(self) -> None:
        """End the run in MLflow as a failed one, which a resume opens again."""
        session = self.session
        with suppress(OSError, StorageError):
            session.folder.write_run({ENDED: "failed"})
        undelivered = session.writer.close(FAILED_S, self.console.line)
        with suppress(TrackingError):  # the fault that ended the training is the one to be shown
            tree = session.writer.ready(0)
            if tree is not None and session.run_id is not None and not undelivered:
                tree.patience_s = FAILED_S
                tree.end_run(session.run_id, "failed")

    @property
    def _can_go_on(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        saved = self.history.checkpoints > 0 or self.folder.training_checkpoints()  # not yet told of, if Ray has ended
        return self.resuming or bool(saved)

    def _setup(self) -> ProductionSetup:
        from raygpu.engines.train.production import ProductionSetup

        return ProductionSetup(
            cluster=self.cluster,
            task=self._task(),
            splits=self.found.splits,
            placing=self.layout.placing,
            folder=self.folder.shared_checkpoints,
            keep=self.config.checkpoint.keep,
            max_failures=self.config.max_failures,
        )

    def _task(self) -> Any:
        from raygpu.engines.train.rank_group import WorkerTask

        config = self.config
        assert config.epochs is not None
        begun_with = warm_start.taken(self.folder, self._warm_start)
        return WorkerTask(
            source=self.cluster.travelled(self.found.source),
            trial=self.prepared.trial,
            epochs=config.epochs,
            precision=config.gpu.precision,
            threads=max(1, int(self.layout.placing.cpus)),
            parallel=self.layout.parallel,
            devices=self.cluster.places(),
            scoring=self.history.scoring,
            shared=self.layout.placing.shared,
            simulated=self.layout.placing.simulated,
            devices_per_worker=self.layout.placing.devices_per_worker,
            checkpoint_epochs=config.checkpoint.epochs,
            checkpoint_s=config.checkpoint.minutes and 60 * config.checkpoint.minutes,
            warm_start=begun_with.uri if begun_with is not None else None,
            run=self.folder.name,
            folds=config.source.get("folds"),
        )

    def _take(self, report: WorkerReport) -> None:
        from raygpu.engines.train.worker_reports import Joined, Notice, Saved

        history = self.history
        match report:
            case Joined():
                history.join(report.rank, report.device)
                self.console.detail(f"rank {report.rank} runs on gpu {report.device}, process {report.pid}")
                if report.rank == 0:
                    self._joined(report)
            case Progress():
                has_ended = history.advance(report)
                self.curves.add(report)
                if has_ended:
                    self.console.detail(epoch_line(history))
            case Saved():
                history.keep(report.epoch, report.score, best=report.best, ended=report.ended, took_s=report.took_s)
                self.console.detail(checkpoint_line(report.epoch, report.step, report.score, best=report.best))
            case Notice():
                if not (report.once and report.line in self._notes):
                    self.console.warn(report.line)
                self._notes |= {report.line} if report.once else set()

    def _joined(self, report: Joined) -> None:
        """Take the history back to where the workers go on: the last attempt alone counts."""
        self._print_new(report.notes)
        self.history.restore(report.restored or Restored(report.epoch, {}, None))
        kept = self.curves.go_back()
        goes_on = f"goes on after epoch {self.history.epoch}{kept * self.config.tracking.enabled}"
        if self.history.starts > 1:
            self.console.warn(f"a worker was lost; the training {goes_on}")
        elif self.resuming:
            self.folder.begin_again()
            self.console.line("has ended already" if self.history.has_ended else goes_on)

    def _print_new(self, notes: Sequence[str]) -> None:
        """Print the notes of a worker that have not been printed yet."""
        self.console.lines([note for note in notes if note not in self._notes])
        self._notes |= set(notes)

    def _read_gpus(self) -> None:
        """Read the GPUs, every two seconds, and note their readings and throughput for the report and for MLflow."""
        if time.monotonic() < self._next_reading:
            return
        self._next_reading = time.monotonic() + READINGS_S
        self._readings = self.cluster.readings()
        device_indices = set(self.history.device_of.values())
        self.curves.add_readings({i: reading.metrics() for i, reading in self._readings.items() if i in device_indices})
        if self.cluster.local:
            self.curves.timeline.host(psutil.cpu_percent())
        self.curves.timeline.flush()

    def finish(self, ended: TrainingOutcome) -> TrainingResult:
        """Write the summary, keep the model, and end the run in MLflow."""
        from raygpu.engines.train.best_checkpoint import best_of, lost_line

        interrupted = ended.interrupted and not self.history.has_ended
        self.stages.end("ray_end")
        disk.wait_and_say(ray_files.disks(self.folder.path), self.console.warn, lambda: interrupted)
        try:
            with fetched(ended.kept) if ended.kept is not None else nullcontext() as checkpoint:
                best, self.history.best = self.history.best, best_of(ended.best) if ended.best is not None else None
                if best is not None and self.history.best != best:
                    self.console.warn(lost_line(best, self.history.best))
                summary = summarize_training(
                    self.config,
                    self.history,
                    self.layout.placing,
                    self.layout.global_batch,
                    ended,
                    self.stages,
                )
                summary |= {TEST: self.on_test.as_dict()} if self.on_test is not None else {}
                summary["tracking"] = self.session.identity(interrupted=interrupted)
                if self._is_function:
                    late, best = SAVES_LATE in self._notes, self.history.best
                    checkpoint, line = function_state(checkpoint, best, saves_late=late, interrupted=interrupted)
                    summary["checkpoint"] = summary["checkpoint"] if checkpoint is not None else None
                    self.console.results([line] if line else [])
                elif not interrupted and ended.best is not None:
                    assert checkpoint is not None
                    summary |= self._keep_model(checkpoint)
                self.folder.write_summary(summary)
                self.folder.error.unlink(missing_ok=True)  # an earlier start's
                if (fault := self.curves.timeline.close()) is not None:
                    self.console.warn(fault)
                self.stages.end("files")
                self.session.deliver(self.console.line)
                self.stages.end("delivery")
                summary["stages_s"] = self.stages.rounded()
                self.folder.write_summary(summary)
                report = write_report_of(self.folder, self.console.warn)
                self.session.checkpoint = checkpoint
                self.session.presentation = presentation(self.config, self.folder, summary)
                said = self.session.close(summary, interrupted=interrupted, say=self.console.line)
                self.console.warnings(said)
        finally:
            self.folder.hand_over()
        self._print_end(summary, interrupted)
        self.console.results(report)
        return TrainingResult(summary, self.folder.path, interrupted)

    @property
    def _is_function(self) -> bool:
        return self.found.source.kind == "function"

    def _keep_model(self, checkpoint: Path) -> dict[str, Any]:
        assert self.history.best is not None
        assert self._example is not None
        source, code, trial, score = self.found.source, self.found.code, self.prepared.trial, self.history.best.score
        model = registration.Candidate(source, code, trial, checkpoint, score, self._example, self._validation)
        entry = registration.keep(self.config, self.session, model, self.console.result)
        return {"model": entry} if entry else {}

    def _print_end(self, summary: Mapping[str, Any], interrupted: bool) -> None:
        console = self.console
        console.results(ending(self.config, self.history, self.layout.global_batch, self.on_test))
        took = f"{duration(summary['wall_s'])}, {duration(summary['command_s'])} with Ray's start"
        console.result(f"{summary['epochs']} epochs in {took}; all of it in {self.folder}")
        if summary["checkpoint"] is not None:
            label = "the function's state" if self._is_function else "the model"
            console.result(f"{label}: {summary['checkpoint']}")
        if (curves := self.session.next_line()) is not None:
            console.result(curves)
        if interrupted:
            console.result(f"interrupted; go on with: {self.folder.resumed_by('train')}")
