"""Search for hyper-parameters, with trials packed on fractions of the GPUs and every trial in MLflow.

python -m raygpu.sweep conf/sweep/digits.toml --trials 16 --gpu.fraction 0.2
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raygpu.cli.command import INCOMPLETE, Command, Outcome, incomplete
from raygpu.cli.flags import Arguments
from raygpu.cli.plan_view import sweep_lines
from raygpu.cli.sweep_ending import ending
from raygpu.cli.sweep_view import SweepConsole
from raygpu.config import SweepConfig
from raygpu.devices import disk
from raygpu.engines.cluster import ray_files
from raygpu.engines.cluster.sites import local_site
from raygpu.engines.profiling.measurer import Measurer
from raygpu.errors import BadInput, RaygpuError, one_line
from raygpu.planning.gpu_shares import ArrayPlan
from raygpu.planning.sweep_plan import Decision
from raygpu.records.clock import process_age_s
from raygpu.records.run_directory import RunDirectory
from raygpu.records.trial_records import Records
from raygpu.search.trials import Scoring, TrialRecord
from raygpu.storage import StorageError
from raygpu.workflow.planner import Planner
from raygpu.workflow.ray_startup import faults_printed_first, ray_starting, wait_for_ray
from raygpu.workflow.summary import summarize, write_files
from raygpu.workflow.trial_groups import Grouped, grouped
from raygpu.workflow.user_code import Problem, find, problem
from raygpu.workflow.validation import Prepared, apart, prepare

if TYPE_CHECKING:
    from raygpu.engines.cluster.cluster import Cluster
    from raygpu.engines.cluster.mps_daemons import Daemons
    from raygpu.engines.tune.sweep_context import SweepContext
    from raygpu.engines.tune.sweep_monitor import SweepMonitor
    from raygpu.tracking.runs import RunTree

DEFAULT = Path("conf/sweep/digits.toml")
SWITCHES = {
    "dry-run": "Print the plan and start nothing.",
    "json": "Print the summary as JSON on standard output, and all else on standard error.",
}
OPTIONS = {
    "resume": "Go on with the sweep in this folder: finished trials stay, the others run. With --trials N, it goes on"
    " to N trials in all.",
    "retry": "With --resume: failed, for the trials that failed, from their beginning.",
}
LIMITS = ("trial_timeout_s", "silence_timeout_s")
"""Limits of time, which a resumed sweep may change."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a sweep."""

    summary: dict[str, Any]
    """The content of `summary.json`; empty for a dry run."""
    folder: Path | None
    best: list[TrialRecord]
    """The five best trials."""
    interrupted: bool = False
    failures: list[str] = field(default_factory=list)
    """The last line of each failed trial's traceback."""

    @property
    def exit_code(self) -> int:
        """Exit code: 0; 1 if no trial has a finite score; 3 if MLflow lacks a part; 130 after Ctrl-C."""
        if self.interrupted:
            return 130
        if self.summary and self.summary["best"] is None:
            return 1
        return INCOMPLETE if incomplete(self.summary) else 0


def run(
    config: SweepConfig,
    *,
    stem: str = "sweep",
    source_folder: Path | None = None,
    resume: RunDirectory | None = None,
    retry_failed: bool = False,
    dry_run: bool = False,
    console: SweepConsole | None = None,
) -> Result:
    """Run a sweep, or go on with one, and leave its results in `runs/<name>/` and in MLflow.

    stem: first part of the name of a sweep that is not named. source_folder: the start of the experiment's relative
    paths, by default the working directory. retry_failed: whether the failed trials of the resumed sweep run again.
    Raises BadInput, with a line for each fault.
    """
    console = console or SweepConsole()
    source_folder = (source_folder or Path.cwd()).resolve()
    prepared = prepare(config, stem, resuming=resume is not None)
    config = prepared.config
    local = config.cluster.is_local
    console.lines([*sweep_lines(config, simulated=local and not prepared.gpus), *prepared.left_out])
    source, code = find(config, source_folder)
    timing: dict[str, float | None] = {"code_s": process_age_s()}
    with (
        ray_starting(
            config.cluster, prepared.gpus, source_folder, console.line, apart=apart(config), wanted=not dry_run
        ) as starting,
        faults_printed_first(),
    ):
        found = problem(prepared, source, code)  # imports torch or TensorFlow, while Ray's processes start
        console.lines(found.notes)
        timing["data_s"] = process_age_s()
        groups = grouped(config, prepared.space, prepared.sampler, source, code, found.splits)
        measurer = Measurer(config, source, code, found.splits, groups.groups)
        planner = Planner(config, prepared.sampler.num_trials, groups, measurer, console.lines)
        if prepared.nodes is not None:
            planner.ahead(local_site(prepared.gpus, prepared.nodes), dry=dry_run)
        if starting is None:
            return Result({}, None, [])
        timing["experiment_s"] = process_age_s()

        from raygpu.tracking.session import open_store

        tree = open_store(config)
        timing["tracking_s"] = process_age_s()
        cluster = wait_for_ray(starting)
        timing["ray_s"] = process_age_s()
        decision = planner.on(cluster)
        timing["plan_s"] = process_age_s()
        planned = _Planned(prepared, found, groups, decision, cluster, tree, source_folder, resume, retry_failed)
        sweep_run = _SweepRun(planned, console)
        sweep_run.run(timing)
    return sweep_run.finish()


@dataclass(frozen=True, slots=True)
class _Planned:
    """A sweep that can begin."""

    prepared: Prepared
    found: Problem
    groups: Grouped
    decision: Decision
    cluster: Cluster
    tree: RunTree | None
    """MLflow, as `open_store` gave it."""
    source_folder: Path
    resume: RunDirectory | None
    """The folder of the sweep that goes on; None of a new one."""
    retry_failed: bool


class _SweepRun:
    """A sweep under way: its folder, its records, its runs in MLflow, and the trials.

    Raises BadInput where a node of the cluster does not see the sweep's folder.
    """

    def __init__(self, planned: _Planned, console: SweepConsole) -> None:
        from raygpu.tracking.session import FUSED_CPU_SHARE, SweepSession
        from raygpu.tracking.writer import CPU_SHARE

        prepared, decision, cluster = planned.prepared, planned.decision, planned.cluster
        config = prepared.config
        self.prepared, self.found, self.groups, self.decision = prepared, planned.found, planned.groups, decision
        self.config, self.cluster, self.console = config, cluster, console
        self.resuming, self.retry_failed = planned.resume is not None, planned.retry_failed
        self.folder = self._ready_folder(planned.resume, planned.source_folder)
        self.records = Records(prepared.sampler.num_trials, Scoring.of(config), cluster.devices, config.epochs)
        # Of an array hundreds of trials run at once and end together, so writing keeps pace with them.
        share = FUSED_CPU_SHARE if isinstance(decision.plan, ArrayPlan) else CPU_SHARE
        self.session = SweepSession(config, self.folder, planned.tree, cpu_share=share)
        self.checkpoints: dict[str, str] = {}
        self.summary: dict[str, Any] = {}
        self.interrupted = False
        console.lines([cluster.address_line(), self.session.address_line()])

    def _ready_folder(self, resume: RunDirectory | None, source_folder: Path) -> RunDirectory:
        """Return a folder that all nodes see, with the files for a resume; a new one that cannot be written, or that a
        node cannot reach, is removed."""
        disk.wait_and_say(ray_files.disks(Path(self.config.runs_dir)), self.console.line)
        folder = resume or RunDirectory.create(Path(self.config.runs_dir), str(self.config.name), self.config.storage)
        folder.claim()
        try:
            if resume is None:
                folder.write_config(self.config, source_folder)
                folder.write_run({"gpu": self.decision.settled(self.config.gpu)})
            else:
                folder.change_config(self.config.model_dump(include={"trials", *LIMITS}, exclude_none=True))
            self.cluster.require(folder.shared)
        except (RaygpuError, OSError) as error:
            if resume is None:
                folder.remove()
            if isinstance(error, OSError):
                raise RaygpuError(f"{folder.path} cannot be written: {one_line(error)}") from error
            raise
        return folder

    def run(self, timing: dict[str, float | None]) -> None:
        """Run all trials, to their end or Ctrl-C; delete a sweep that failed before the first score.

        timing: receives the seconds from the start of the command to the end of the first epoch and of the last trial.
        """
        from raygpu.engines.cluster.mps_daemons import daemons
        from raygpu.engines.cluster.prometheus import SweepExporter
        from raygpu.engines.tune.sweep_monitor import SweepMonitor

        cluster, records, session, console = self.cluster, self.records, self.session, self.console
        exporter = SweepExporter(self.folder.name, records)
        console.start(cluster.devices, records.snapshot, synthetic=self.config.data.synthetic)
        try:
            with (
                daemons(cluster.devices, console.line, wanted=self.decision.mps and cluster.local) as mps,
                SweepMonitor(records, cluster, session.writer, console.update, exporter.update) as monitor,
            ):
                self._require_mps(mps)
                context = self._context(mps, partial(self._leave, timing, monitor))
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
            if isinstance(end, BadInput):
                raise
            raise KeyboardInterrupt(f"interrupted; go on with: {self.folder.resumed_by('sweep')}") from None
        finally:
            console.stop(records.snapshot())
        self._summarize(timing, monitor, context.arrays_s)
        exporter.finish(records.snapshot())

    def _summarize(self, timing: dict[str, float | None], monitor: SweepMonitor, arrays_s: Mapping[str, float]) -> None:
        """End the records and the trials' runs in MLflow, and sum up."""
        self.interrupted = self.records.interrupt(self.session.writer.end) and self.records.hopeless is None
        timing |= {"first_epoch_s": self.records.first_epoch_s, "trials_s": process_age_s()}
        self.summary = summarize(
            self.config,
            self.decision,
            self.records,
            self.cluster,
            monitor,
            timing,
            self.session.identity(interrupted=self.interrupted),
            arrays_s,
        )
        self.session.writer.finish()  # what waits is delivered while Ray ends

    def _leave(self, timing: dict[str, float | None], monitor: SweepMonitor, checkpoints: Mapping[str, str]) -> None:
        """Write the results of an interrupted sweep, and end this process without Ray."""
        code = 1
        try:
            self.console.stop(self.records.snapshot())
            self.checkpoints = dict(checkpoints)
            self._summarize(timing, monitor, {})
            code = self.finish().exit_code
        except Exception as error:  # noqa: BLE001 - nothing comes after this thread
            again = self.folder.resumed_by("sweep")
            self.console.line(f"the results are not complete: {one_line(error)}; go on with: {again}")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

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
            sampler=self.prepared.sampler,
            cluster=self.cluster,
            records=self.records,
            writer=self.session.writer,
            folder=self.folder,
            mps=mps,
            say=self.console.line,
            leave=leave,
            retry_failed=self.retry_failed,
        )

    def _run_trials(self, context: SweepContext) -> None:
        """Run the planned trials under Tune."""
        from raygpu.engines.tune import engine

        grouper = self.groups.grouper if isinstance(self.decision.plan, ArrayPlan) else None
        self.checkpoints = engine.run(context, self.decision.plan, grouper, resume=self.resuming)

    def finish(self) -> Result:
        """Write the results' files, end the runs in MLflow, and print the end."""
        disk.wait_and_say(ray_files.disks(self.folder.path), self.console.line, lambda: self.interrupted)
        try:
            lines = write_files(self.folder, self.config, self.found, self.records, self.checkpoints, self.summary)
            self.console.lines(lines)
        except OSError as error:
            if not disk.is_full(error):
                raise
            after = f"free some space, then go on with: {self.folder.resumed_by('sweep')}"
            raise RaygpuError(f"{self.folder.path}: {error.strerror}; {after}") from error
        finally:
            try:
                said = self.session.close(self.summary, interrupted=self.interrupted, say=self.console.line)
                self.console.lines(said)
            finally:
                self.folder.hand_over()
        best, failures = self.records.ranked()[:5], self.records.failures()
        if self.summary["best"] is not None:
            self.console.best(self.config.metric, best)
        self.console.lines(ending(self.summary, failures, self.folder, self.session.next_line(), self.interrupted))
        return Result(self.summary, self.folder.path, best, self.interrupted, failures)


COMMAND = Command(
    "sweep",
    __doc__,
    SweepConfig,
    DEFAULT,
    SWITCHES,
    OPTIONS,
    ("trials", "retry", *LIMITS),
    interrupted="interrupted before any trial had begun; nothing was kept",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    return COMMAND.main(argv, _main)


def _main(arguments: Arguments) -> Outcome:
    result = _run(arguments)
    return Outcome(result.exit_code, result.summary or None)


def _run(arguments: Arguments) -> Result:
    console = SweepConsole(json="json" in arguments.switches)
    retry = arguments.options.get("retry")
    if "resume" in arguments.options:
        if "dry-run" in arguments.switches:
            raise BadInput("--dry-run: shows the plan of a new sweep; leave out --resume")
        overrides = COMMAND.read_resumed(arguments)
        if retry not in (None, "failed"):
            raise BadInput(f"--retry: read {retry!r}; allowed: failed")
        earlier = RunDirectory.existing(arguments.options["resume"])
        config = resumed_config(earlier, overrides)
        return run(
            config,
            source_folder=earlier.source_folder,
            resume=earlier,
            retry_failed=retry is not None,
            console=console,
        )
    if retry is not None:
        raise BadInput("--retry: goes with --resume, the folder of a sweep")
    config, stem, folder = COMMAND.read(arguments)
    return run(config, stem=stem, source_folder=folder, dry_run="dry-run" in arguments.switches, console=console)


def resumed_config(earlier: RunDirectory, overrides: Mapping[str, str]) -> SweepConfig:
    """Return the configuration of a sweep that goes on, with the fields that may change. Raises BadInput for others,
    and for fewer trials than the sweep has."""
    COMMAND.require_resumable(overrides)
    config, before = earlier.read_config(overrides), earlier.read_config()
    if config.trials is not None and before.trials is not None and config.trials < before.trials:
        raise BadInput(f"--trials: read {config.trials}; the sweep has {before.trials}, and can have more")
    return config


if __name__ == "__main__":
    sys.exit(main())
