"""Train one set of hyper-parameters for production, data-parallel over all devices, and keep the model.

python -m raygpu.train --from runs/digits                          the best trial of a sweep
python -m raygpu.train conf/train/digits.toml --workers 2 --ratios 3,2
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raygpu.cli.command import INCOMPLETE, Command, Outcome, incomplete
from raygpu.cli.flags import Arguments
from raygpu.cli.formatting import duration
from raygpu.cli.training_view import TrainConsole, beginning, ending
from raygpu.config import TrainConfig, load, read_toml
from raygpu.config.sections import TrackingSection
from raygpu.config.source import code_folder
from raygpu.devices import disk
from raygpu.engines.cluster import ray_files
from raygpu.errors import BadInput, RaygpuError, one_line
from raygpu.experiment import take
from raygpu.records.clock import process_age_s
from raygpu.records.run_directory import RunDirectory
from raygpu.records.training_progress import History, Progress
from raygpu.search.trials import Scoring
from raygpu.storage import Storage
from raygpu.training.distributed.batch_split import BatchPlan, checked, spread
from raygpu.workflow import registration
from raygpu.workflow.promotion import promoted
from raygpu.workflow.ray_startup import faults_printed_first, ray_starting, wait_for_ray
from raygpu.workflow.summary import summarize_training
from raygpu.workflow.user_code import Problem, find, require_fitting, require_one_fitting, training_problem
from raygpu.workflow.validation import PreparedTrain, prepare_train

if TYPE_CHECKING:
    from raygpu.engines.cluster.cluster import Cluster
    from raygpu.engines.train.production import Ended, Notice, Placing, Setup
    from raygpu.engines.train.worker_reports import Joined, Report
    from raygpu.tracking.runs import RunTree

DEFAULT = Path("conf/train/digits.toml")
START = "start"
"""Folder below the checkpoints with the parameters of a warm start."""
SWITCHES = {
    "warm-start": "With --from: begin with the trial's parameters, and not with new ones.",
    "json": "Print the summary as JSON on standard output, and all else on standard error.",
}
OPTIONS = {
    "from": "A sweep's folder, runs/<sweep>, or its MLflow run's id: train its best trial. Or a trial's run's id.",
    "register": "Put the model into MLflow's registry under this name, if it beats the trial's score.",
    "resume": "Go on with the training in this folder, from its last checkpoint.",
}


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a training."""

    summary: dict[str, Any]
    """The content of `summary.json`."""
    folder: Path
    interrupted: bool


def run(
    config: TrainConfig,
    *,
    stem: str = "train",
    source_folder: Path | None = None,
    warm_start: Path | None = None,
    resume: RunDirectory | None = None,
    console: TrainConsole | None = None,
) -> Result:
    """Train, or go on with a training, and leave its checkpoints in `runs/<name>/` and its curves in MLflow.

    stem: first part of the name of a run that is not named. source_folder: the start of the experiment's relative
    paths, by default the working directory. warm_start: folder of a checkpoint with the initial parameters. Raises
    BadInput, with a line for each fault.
    """
    console = console or TrainConsole()
    source_folder = (source_folder or Path.cwd()).resolve()
    prepared = prepare_train(config, stem, resuming=resume is not None)
    config = prepared.config
    console.lines([*beginning(config, simulated=config.cluster.is_local and not prepared.gpus), *prepared.left_out])
    source, code = find(config, source_folder)
    with (
        ray_starting(config.cluster, prepared.gpus, source_folder, console.line, apart=False) as starting,
        faults_printed_first(),
    ):
        found = training_problem(prepared, source, code)  # imports torch, while Ray's processes start
        if warm_start is not None:
            require_fitting(found, config.hyperparameters, Storage(str(warm_start)), "--warm-start")
        if resume is not None:
            require_one_fitting(found, config.hyperparameters, resume.training_checkpoints())

        from raygpu.tracking.session import open_store

        tree = open_store(config)
        assert starting is not None
        cluster = wait_for_ray(starting)
        from raygpu.engines.train.production import placing

        where = placing(cluster, config.workers, config.devices_per_worker, found.source.kind, config.cluster.most_gpus)
        earlier = resume.read_run() if resume is not None else {}
        assert found.splits is not None
        what = spread(config, where.ranks, found.splits.num_train, global_batch=earlier.get("global_batch"))
        what = checked(config, what, where.ranks, found.source, found.code, found.splits)
        planned = _Planned(prepared, found, what, where, cluster, tree, source_folder, resume)
        training = _TrainingRun(planned, console)
        ended = training.run(warm_start)
    return training.finish(ended)


@dataclass(frozen=True, slots=True)
class _Planned:
    """A training that can begin."""

    prepared: PreparedTrain
    found: Problem
    spread: BatchPlan
    placing: Placing
    cluster: Cluster
    tree: RunTree | None
    """MLflow, as `open_store` gave it."""
    source_folder: Path
    resume: RunDirectory | None
    """The folder of the training that goes on; None of a new one."""


class _TrainingRun:
    """A training under way: its folder, its history, its run in MLflow, and its workers."""

    def __init__(self, planned: _Planned, console: TrainConsole) -> None:
        from raygpu.tracking.session import TrainSession

        prepared, cluster = planned.prepared, planned.cluster
        config = prepared.config
        self.prepared, self.config, self.found, self.spread = prepared, config, planned.found, planned.spread
        self.cluster, self.console, self.resuming = cluster, console, planned.resume is not None
        self.placing = planned.placing
        self.folder = self._ready_folder(planned.resume, planned.source_folder)
        assert config.epochs is not None
        self.history = History(Scoring(config.metric, config.maximize), cluster.devices, config.epochs)
        self.session = TrainSession(config, self.folder, planned.tree)
        lines = [self.placing.line(cluster.devices), *self.spread.lines, cluster.address_line()]
        console.lines([*lines, self.session.address_line()])

    def _ready_folder(self, resume: RunDirectory | None, source_folder: Path) -> RunDirectory:
        disk.wait_and_say(ray_files.disks(Path(self.config.runs_dir)), self.console.line)
        folder = resume or RunDirectory.create(Path(self.config.runs_dir), str(self.config.name), self.config.storage)
        try:
            folder.claim()
            if resume is None:
                folder.write_config(self.config, source_folder, kind="train")
                folder.write_run({"global_batch": self.spread.parallel.global_batch})
            self.cluster.require(folder.shared)
        except (RaygpuError, OSError) as error:
            if resume is None:
                folder.remove()
            if isinstance(error, OSError):
                raise RaygpuError(f"{folder.path} cannot be written: {one_line(error)}") from error
            raise
        return folder

    def run(self, warm_start: Path | None) -> Ended:
        """Train to the end, or Ctrl-C; delete a training that failed before its first checkpoint."""
        from raygpu.engines.cluster.prometheus import TrainingExporter
        from raygpu.engines.train.production import ProductionRun

        config, console = self.config, self.console
        exporter = TrainingExporter(self.folder.name, self.history, self.cluster.readings)

        console.start(self.history, synthetic=config.data.synthetic)
        try:
            running = ProductionRun(self._setup(warm_start))
            for reports in running:
                for report in reports:
                    self._take(report)
                console.update(self.history, self._readings(), self.session.writer.delayed)
                exporter.update()
            assert running.ended is not None
            return running.ended
        except BaseException as error:
            console.stop(self.history)
            self._abandon(error)
            if isinstance(error, KeyboardInterrupt) and self._can_go_on:
                line = f"interrupted; go on after the last checkpoint with: {self.folder.resumed_by('train')}"
                raise KeyboardInterrupt(line) from error
            raise
        finally:
            console.stop(self.history)

    def _abandon(self, error: BaseException) -> None:
        from raygpu.engines.train.production import TrainingFailed

        if isinstance(error, TrainingFailed):
            (self.folder.path / "error.txt").write_text(error.traceback)
        if not self._can_go_on and not isinstance(error, TrainingFailed):
            self.session.discard()
            self.folder.remove()
        else:
            self.session.writer.close(0)
            self.folder.publish()

    @property
    def _can_go_on(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        saved = self.history.checkpoints > 0 or self.folder.training_checkpoints()  # not yet told of, if Ray has ended
        return self.resuming or bool(saved)

    def _setup(self, warm_start: Path | None) -> Setup:
        from raygpu.engines.train.production import Setup

        assert self.found.splits is not None
        return Setup(
            cluster=self.cluster,
            task=self._task(warm_start),
            splits=self.found.splits,
            placing=self.placing,
            folder=self.folder.shared_checkpoints,
            keep=self.config.checkpoint.keep,
            max_failures=self.config.max_failures,
        )

    def _task(self, warm_start: Path | None) -> Any:
        from raygpu.engines.train.rank_group import WorkerTask

        config = self.config
        assert config.epochs is not None
        start = self.folder.shared_checkpoints / START
        if warm_start is not None:
            start.upload(warm_start)
        return WorkerTask(
            source=self.cluster.travelled(self.found.source),
            trial=self.prepared.trial,
            epochs=config.epochs,
            precision=config.gpu.precision,
            threads=max(1, int(self.placing.cpus)),
            parallel=self.spread.parallel,
            devices=self.cluster.places(),
            scoring=self.history.scoring,
            shared=self.placing.shared,
            simulated=self.placing.simulated,
            each=self.placing.each,
            checkpoint_epochs=config.checkpoint.epochs,
            checkpoint_s=config.checkpoint.minutes and 60 * config.checkpoint.minutes,
            warm_start=start.uri if warm_start is not None else None,
        )

    def _take(self, report: Report | Notice) -> None:
        from raygpu.engines.train.production import Notice
        from raygpu.engines.train.worker_reports import Joined, Saved

        history, writer = self.history, self.session.writer
        match report:
            case Joined():
                history.join(report.rank, report.device)
                if report.rank == 0:
                    self._joined(report)
            case Progress():
                is_new = history.advance(report)
                metrics = history.curves()
                writer.run_metrics(report.steps * (report.epoch - 1) + report.step, metrics)
                if is_new:
                    writer.run_metrics(report.epoch, history.metrics)
            case Saved():
                history.keep(report.epoch, report.score, best=report.best)
            case Notice():
                self.console.line(report.line)

    def _joined(self, report: Joined) -> None:
        if self.history.starts == 1:
            self.console.lines(report.notes)
            if report.restored is not None:
                self.history.restore(report.restored)
            if self.resuming:
                ended = self.history.epoch >= self.history.epochs
                self.console.line("has ended already" if ended else f"goes on after epoch {report.epoch}")
        else:
            self.console.line(f"a worker was lost; all go on after epoch {report.epoch}")

    def _readings(self) -> Mapping[int, Mapping[str, float]]:
        return {index: reading.metrics() for index, reading in self.cluster.readings().items()}

    def finish(self, ended: Ended) -> Result:
        """Write the summary, keep the model, and end the run in MLflow."""
        from raygpu.engines.train.worker import best_of

        interrupted = ended.interrupted and self.history.epoch < self.history.epochs
        disk.wait_and_say(ray_files.disks(self.folder.path), self.console.line, lambda: interrupted)
        try:
            with ended.kept.fetched() if ended.kept is not None else nullcontext() as checkpoint:
                self.history.best = best_of(checkpoint) if ended.best is not None and checkpoint is not None else None
                global_batch, ended_s = self.spread.parallel.global_batch, process_age_s()
                summary = summarize_training(self.config, self.history, self.placing, global_batch, ended, ended_s)
                summary["tracking"] = self.session.identity(interrupted=interrupted)
                if not interrupted and ended.best is not None:
                    assert checkpoint is not None
                    summary |= self._keep_model(checkpoint)
                self.folder.write_summary(summary)
                self.session.checkpoint = checkpoint
                said = self.session.close(summary, interrupted=interrupted, say=self.console.line)
                self.console.lines(said)
        finally:
            self.folder.hand_over()
        self._print_end(summary, interrupted)
        return Result(summary, self.folder.path, interrupted)

    def _keep_model(self, checkpoint: Path) -> dict[str, Any]:
        assert self.found.splits is not None
        assert self.history.best is not None
        few = take(self.found.splits.validation_inputs, slice(0, registration.NUM_SAMPLES))
        validation = registration.fingerprint(self.found.splits)
        source, code, score = self.found.source, self.found.code, self.history.best.score
        model = registration.Candidate(source, code, checkpoint, score, few, validation)
        kept = registration.keep(self.config, self.session, model, self.console.line)
        return {"model": kept} if kept else {}

    def _print_end(self, summary: Mapping[str, Any], interrupted: bool) -> None:
        console = self.console
        console.lines(ending(self.config, self.history, self.spread.parallel.global_batch))
        console.line(f"{summary['epochs']} epochs in {duration(summary['wall_s'])}; all of it in {self.folder}")
        if summary["checkpoint"] is not None:
            console.line(f"the model: {summary['checkpoint']}")
        if (curves := self.session.next_line()) is not None:
            console.line(curves)
        if interrupted:
            console.line(f"interrupted; go on with: {self.folder.resumed_by('train')}")


COMMAND = Command(
    "train",
    __doc__,
    TrainConfig,
    DEFAULT,
    SWITCHES,
    OPTIONS,
    interrupted="interrupted before its end; a training that has a checkpoint goes on by --resume",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    return COMMAND.main(argv, _main)


def _main(arguments: Arguments) -> Outcome:
    result = _run(arguments)
    ended = INCOMPLETE if incomplete(result.summary) else 0
    return Outcome(130 if result.interrupted else ended, result.summary)


def _run(arguments: Arguments) -> Result:
    console = TrainConsole(json="json" in arguments.switches)
    options = arguments.options
    if "resume" in options:
        overrides = COMMAND.read_resumed(arguments)
        earlier = RunDirectory.existing(options["resume"], "train")
        config = load(earlier.config, overrides, TrainConfig)
        return run(config, source_folder=earlier.source_folder, resume=earlier, console=console)
    warm = "warm-start" in arguments.switches
    path = Path(arguments.file) if arguments.file else None if "from" in options else DEFAULT
    origin = promoted(options["from"], partial(_tracking, arguments, path), warm) if "from" in options else None
    if warm and (origin is None or origin.checkpoint is None):
        what = "has no checkpoint of that trial" if origin is not None else "is not given"
        raise BadInput(f"--warm-start: takes the parameters of a sweep's best trial, and --from {what}")
    if "register" in options:
        arguments.overrides["registered_name"] = options["register"]
    config = load(path, arguments.overrides, TrainConfig, origin.values if origin is not None else None)
    folder = origin.source_folder if origin is not None else code_folder(config.experiment, path or DEFAULT)
    return run(
        config,
        stem=path.stem if path is not None else f"{origin.name if origin is not None else ''}-train",
        source_folder=folder,
        warm_start=origin.checkpoint if origin is not None and warm else None,
        console=console,
    )


def _tracking(arguments: Arguments, path: Path | None) -> TrackingSection:
    """Return the tracking settings for a run that is named by its id. Raises BadInput."""
    flags = {name: text for name, text in arguments.overrides.items() if name.startswith("tracking.")}
    file = {"tracking": read_toml(path).get("tracking", {})} if path is not None else {}
    return load(None, flags, TrainConfig, {"experiment": "any:Any"} | file).tracking.found()


if __name__ == "__main__":
    sys.exit(main())
