"""Track a run from start to end: begun in the background, closed with the run's files as artifacts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

from raygpu.config import ProblemConfig, TrainConfig
from raygpu.errors import TrackingError, one_line, redacted
from raygpu.records.run_directory import RunDirectory
from raygpu.search.trial_record import Status
from raygpu.storage import StorageError
from raygpu.tracking import carried_store, client
from raygpu.tracking.null_writer import NullWriter
from raygpu.tracking.presentation import Presentation
from raygpu.tracking.rewriting import has_run, replace_lost
from raygpu.tracking.run_ending import Ending, metrics_on_test, report_files
from raygpu.tracking.runs import Refused, RunTree
from raygpu.tracking.spool import Spool
from raygpu.tracking.stores import scheme, ui_command
from raygpu.tracking.values import flat
from raygpu.tracking.winner_files import winner_files
from raygpu.tracking.writer import CpuLimit, Writer

OPEN_S = 60.0
FUSED_CPU_SHARE = 0.25
UI_PORT = 5000
LOST_RUN = "mlflow_lost"  # key in the run's state


def open_store(config: ProblemConfig) -> RunTree | None:
    """Import MLflow, which takes seconds, and open the store; None where tracking is off, or all writes are to wait in
    the run's journal. Raises TrackingError."""
    if not config.tracking.enabled or carried_store.spools():
        return None
    return RunTree.open(config.tracking.uri, config.tracking.experiment)


class Session(ABC):
    """A run in MLflow with the runs below it, begun and written in the writer's thread."""

    kind: ClassVar[str]
    """Command that makes the run, `sweep` or `train`."""
    writer: Writer | NullWriter

    def __init__(
        self,
        config: ProblemConfig,
        folder: RunDirectory,
        tree: RunTree | Callable[[], RunTree] | None,
        *,
        cpus: CpuLimit | None = None,
        presentation: Presentation | None = None,
    ) -> None:
        """Start the writer, if tracking is on. cpus: limit of the CPU time for writing.

        tree: the open store, or a function that opens it in the writer's thread; None where tracking is off.
        presentation: on MLflow's pages; written again at the end.
        """
        self.config = config
        self.folder = folder
        self.spools = config.tracking.enabled and carried_store.spools()
        """Whether all writes wait in the run's journal, for `raygpu deliver`."""
        self.enabled = tree is not None
        self.fault: str | None = None
        """Why MLflow lacks a part of the run that is no waiting write; None if it lacks none."""
        self.lacks_model: str | None = None
        """Why MLflow lacks a training's model, which --resume logs; None if it does not."""
        run_state = folder.read_run()
        self.run_id: str | None = run_state.get("mlflow_run_id") or None
        self._key: str = run_state.get("mlflow_key") or uuid4().hex
        """The run's own name for itself, noted before MLflow is asked for a run, whose answer may be lost."""
        self._may_exist = "mlflow_key" in run_state or self.run_id is not None
        self.presentation = presentation or Presentation()
        self._lines: list[str] = []
        self._lost: str | None = run_state.get(LOST_RUN)
        """Id of the run that the store has lost, until it is written again; None without such a run."""
        self._config_fault: str | None = None
        """Why the configuration was not taken as the run began; it is uploaded at the end. None if it was."""
        self._num_begun = 0
        """Number of runs taken over, and of trials written again, in the place of a lost run."""
        self.writer = Spool(folder.journal) if self.spools else NullWriter()
        if tree is not None:
            if not self._may_exist:
                folder.write_run({"mlflow_key": self._key})
            opened = tree if callable(tree) else lambda: tree
            begin, num_begun = lambda: self._begin(opened()), lambda: self._num_begun
            self.writer = Writer(begin, folder.journal, cpus=cpus, num_begun=num_begun)

    def _begin(self, tree: RunTree) -> RunTree:
        """Begin the run, or go on with it; called in the writer's thread, again until it succeeds."""
        if self.config.data.synthetic:
            tree.tags["raygpu.data"] = "synthetic"
        begun, may_exist = self.run_id, self._may_exist
        if begun is not None and not has_run(tree, begun):
            self._lost, begun = begun, None
            self.folder.write_run({LOST_RUN: self._lost})
        if begun is None:
            self._may_exist = True
            begun = tree.start_run(self.folder.name, self.tags(), self.params(), self.kind, self._key)
            # While a store hangs, another process may have gone on with the run.
            noted = str(self.folder.read_run().get("mlflow_run_id") or begun)
            begun = noted if noted != self._lost else begun
            tree.keep(now=True)  # a run whose id is noted is found by every later start
            self._note_run_id(begun)
        if self._lost is not None:
            tree.adopt_trials(self._lost, begun, self._advance)
        if may_exist:
            tree.resume_run(begun)
            tree.forget_twins(self._key)
        self.run_id = begun
        self._present(tree, begun)
        if self._lost is not None:
            self._lines.append(replace_lost(tree, self.folder, self.config, self._lost, self._advance))
            self.folder.write_run({LOST_RUN: None})
            self._lost = None
        try:
            tree.log_artifact(self.run_id, self.folder.config)
        except TrackingError as error:  # runs and metrics can be kept where files cannot
            self._config_fault = str(error)
        return tree

    def _advance(self) -> None:
        self._num_begun += 1

    def _present(self, tree: RunTree, run_id: str) -> None:
        """Write how MLflow's pages present the run while it goes on. Raises TrackingError."""
        if self.presentation.trials is not None:
            with suppress(Refused):  # who may not write tags of the experiment has MLflow's own table
                tree.share_view(run_id, self.presentation.trials)
        self._describe(tree, run_id)

    def _describe(self, tree: RunTree, run_id: str) -> None:
        if self.presentation.description:
            report = f"[The report]({tree.page(f'/{run_id}/artifacts/{self.folder.report.name}')})"
            table = f"[All trials, the best first]({tree.trials_page})"
            links = [table] * (tree.trials_page is not None) + [report] * self.folder.report.is_file()
            with suppress(Refused):  # nothing else depends on it
                tree.describe(run_id, "\n\n".join([self.presentation.description, *links]))

    def _note_run_id(self, run_id: str) -> None:
        try:
            self.folder.write_run({"mlflow_run_id": run_id})
        except (OSError, StorageError) as error:  # a later start finds the run by its key
            self._lines.append(f"{self.folder.run} cannot be written: {one_line(error)}")

    def tags(self) -> dict[str, Any]:
        """Return the tags of the run, beside those of every run."""
        return {}

    def params(self) -> dict[str, Any]:
        """Return the parameters of the run."""
        return flat(self.config)

    def address_line(self) -> str:
        """Return the line that tells where to watch the run, or that tracking is off."""
        if self.spools:
            return f"MLflow: all writes wait in {self.folder.journal}, for raygpu deliver"
        if not self.enabled:
            return "MLflow: off (tracking.enabled = false)"
        uri = self.config.tracking.uri
        if scheme(uri) in ("http", "https"):
            return f"MLflow UI: {redacted(uri)}"
        return f"MLflow UI: http://127.0.0.1:{UI_PORT}, once started by: {ui_command(uri, UI_PORT)}"

    def next_line(self) -> str | None:
        """Return the line that tells how to see the run's curves, once it has ended."""
        tree = self.begun()
        if tree is None or self.fault is not None:
            return None
        whose = "every trial's" if self.kind == "sweep" else "its"
        started = "" if tree.served else f", once started by: {ui_command(self.config.tracking.uri, UI_PORT)}"
        return f"{whose} curves: {tree.trials_url}{started}"

    def identity(self, *, interrupted: bool) -> dict[str, str | int | None]:
        """Return the `tracking` section of `summary.json` as it is before the end; `close` completes it."""
        if not self.enabled:
            return {"uri": None, "run_id": None, **({"spools": True} if self.spools else {})}
        fields: dict[str, str | int | None] = {"uri": redacted(self.config.tracking.uri), "run_id": self.run_id}
        # A process that is killed before the end leaves a summary that says what is missing.
        status = "interrupted" if interrupted else "finished"
        return fields | {"status": status, "undelivered": self.writer.waiting, "fault": "the run has not ended there"}

    def tree(self) -> RunTree | None:
        """Wait for the tree that holds the run; None where tracking is off. Raises TrackingError without the store."""
        return self.writer.ready(OPEN_S)

    def begun(self) -> RunTree | None:
        """Return the tree if the run has begun in MLflow; never waits."""
        try:
            return self.writer.ready(0)
        except TrackingError:
            return None

    def deliver(self, say: Callable[[str], None] | None = None) -> None:
        """Deliver the waiting writes, as long as the store accepts them; take no more.

        `close` then has only to end the run and to add its files. say: called with lines on the progress.
        """
        self.writer.close(self.config.tracking.patience_s, say)

    def close(
        self, summary: dict[str, Any] | None, *, interrupted: bool, say: Callable[[str], None] | None = None
    ) -> list[str]:
        """Deliver the waiting writes, end the run and add its files; return lines for the user.

        This takes as long as the store accepts writes; `say` is called with lines on the progress. What remains is
        noted in the summary's `tracking`, and in its file. summary: None of a run without an end, whose writes alone
        are delivered.
        """
        patience_s = self.config.tracking.patience_s
        undelivered = self.writer.close(patience_s, say)
        if isinstance(self.writer, Spool):
            return [*self.writer.faults, *self._spooled(summary, interrupted=interrupted)]
        if not isinstance(self.writer, Writer):
            return []
        if undelivered and self.fault is None:
            given_up = f"the store has taken nothing for {patience_s:g} s"
            self.fault = self.writer.delayed or ("interrupted" if self.writer.interrupted else given_up)
        ending = self._ending(summary, interrupted=interrupted) if summary is not None else None
        self._note(summary, ending, undelivered)  # before the file is among the run's artifacts
        try:
            tree = self.writer.ready(0)
            tree.patience_s = 0.0 if undelivered else patience_s  # what has been given up is not waited for again
            self._lines += tree.notes
            if ending is not None:
                self._finish(tree, ending, undelivered)
            elif self._config_fault is not None:
                self._lines.append(self._config_fault)
        except TrackingError as error:
            self.fault = self.fault or str(error)
        self._note(summary, ending, undelivered)
        return [*self._lines, *self.writer.faults, *self._delivery(undelivered)]

    def _spooled(self, summary: dict[str, Any] | None, *, interrupted: bool) -> list[str]:
        """Note in the summary how the run ended, for its delivery; return the line that tells how to deliver it."""
        assert isinstance(self.writer, Spool)
        if summary is not None:
            status = self._ending(summary, interrupted=interrupted).status
            summary["tracking"] = {**summary["tracking"], "status": status, "lacks_model": self.lacks_model}
            self.folder.write_summary(summary)
        delivered = self.folder.delivered_by(self.kind)
        return [f"MLflow: {self.writer.num_spooled:,} writes wait in {self.folder.journal}; deliver by: {delivered}"]

    def _finish(self, tree: RunTree, ending: Ending, undelivered: int) -> None:
        """End the run, then add its files: what cannot be uploaded leaves no run that looks as if it went on."""
        assert self.run_id is not None
        assert isinstance(self.writer, Writer)
        counted = undelivered or self.writer.num_earlier
        lacks = {"raygpu.undelivered": undelivered} if counted else {}  # 0 once a later start has delivered them
        tree.end_run(self.run_id, ending.status, ending.metrics, {**ending.tags, **lacks})
        self._describe(tree, self.run_id)
        with suppress(OSError):
            client.sync(tree.uri)
        lacking: set[str | None] = set()
        late = [(self.folder.config, None)] if self._config_fault is not None else []
        for path, where in (*late, *ending.files):
            if where is not None and where in lacking:  # `best.toml` would tell of a checkpoint without its parts
                continue
            try:
                tree.log_artifact(self.run_id, path, where)
            except TrackingError as error:
                self.fault = f"{path.name} is not among the run's artifacts: {error}"
                if not isinstance(error, Refused):
                    return  # each of the others would be waited for, too
                lacking.add(where)

    def _delivery(self, undelivered: int) -> list[str]:
        """Return lines on what was delivered late, or how to deliver what MLflow lacks."""
        assert isinstance(self.writer, Writer)
        if not undelivered and self.fault is None:
            earlier, lines = self.writer.num_earlier, []
            if earlier:
                lines.append(f"MLflow: {earlier:,} writes that an earlier start had left were delivered")
            if self.lacks_model is not None:
                again = self.folder.resumed_by(self.kind)
                lines.append(f"MLflow: the model is not there ({self.lacks_model}); log it by: {again}")
            return lines
        shortfall = f"{undelivered:,} writes are not in MLflow" if undelivered else "the run is not complete there"
        why = f" ({self.fault})" if self.fault is not None else ""
        where = f"; they lie in {self.folder.journal}" if undelivered else ""
        return [f"MLflow: {shortfall}{why}{where}; deliver by: {self.folder.delivered_by(self.kind)}"]

    def _note(self, summary: dict[str, Any] | None, ending: Ending | None, undelivered: int) -> None:
        """Complete the summary's `tracking`, and its file."""
        if summary is None or ending is None:
            return
        assert isinstance(self.writer, Writer)
        fields = {"run_id": self.run_id, "status": ending.status, "undelivered": undelivered, "fault": self.fault}
        fields |= {"refused": self.writer.num_refused} if self.writer.num_refused else {}
        fields |= {"lacks_model": self.lacks_model} if self.lacks_model else {}
        earlier = {name: value for name, value in summary["tracking"].items() if name not in ("lacks_model", "spools")}
        if summary["tracking"] != (noted := {**earlier, **fields}):
            summary["tracking"] = noted
            try:
                self.folder.write_summary(summary)
            except OSError as error:
                self._lines.append(f"{self.folder.summary} cannot be written: {error.strerror}")

    def discard(self) -> None:
        """Delete the run from MLflow: a fault in the user's input ended it before there was a result."""
        self.writer.close(OPEN_S)
        try:
            tree = self.writer.ready(0)
            if tree is not None:
                tree.discard_run()
        except TrackingError:
            pass  # the fault that ended the run is the one to be shown

    @abstractmethod
    def _ending(self, summary: Mapping[str, Any], *, interrupted: bool) -> Ending:
        """Return the run's end. summary: the content of `summary.json`."""


class SweepSession(Session):
    """The run of a sweep, and one run for each of its trials."""

    kind = "sweep"

    def _ending(self, summary: Mapping[str, Any], *, interrupted: bool) -> Ending:
        folder, best = self.folder, summary["best"]
        files: list[tuple[Path, str | None]] = [
            (path, None)
            for path in (folder.summary, folder.trials_csv, folder.sets_csv, folder.best_toml)
            if path.is_file()
        ]
        files += report_files(folder)
        metrics = {f"trials/{key}": summary[key] for key in ("completed", "diverged", "stopped_early", "failed")}
        tags = {"raygpu.score": f"{summary['score']} epoch"}
        status: Status = "interrupted" if interrupted else "failed" if best is None else "finished"
        if best is None:  # every trial failed or diverged
            return Ending(status, metrics, tags, files)
        files += winner_files(folder, best["trial_id"])
        metrics |= {"best/score": best["score"], "best/epoch": best["epoch"]}
        metrics |= metrics_on_test(folder, summary)
        tags |= {"raygpu.best_trial": best["trial_id"]}
        if best.get("standard_error") is not None:
            metrics["best/standard_error"] = best["standard_error"]
            tags["raygpu.best_set"] = best["set_id"]
        return Ending(status, metrics, tags, files)


class TrainSession(Session):
    """The run of a production training."""

    kind = "train"
    checkpoint: Path | None = None
    """Checkpoint folder to log as artifacts of the run; None for none."""

    def tags(self) -> dict[str, Any]:
        """Return the tags that name the source of the run's hyper-parameters."""
        assert isinstance(self.config, TrainConfig)
        names = {"sweep": "raygpu.sweep", "trial_id": "raygpu.trial_id", "mlflow_run_id": "raygpu.sweep_run_id"}
        return {tag: self.config.source[name] for name, tag in names.items() if name in self.config.source}

    def params(self) -> dict[str, Any]:
        """Return the hyper-parameters, named as in a trial's run, and the configuration."""
        assert isinstance(self.config, TrainConfig)
        prefixes = ("hyperparameters.", "source.")
        settings = {name: value for name, value in flat(self.config).items() if not name.startswith(prefixes)}
        return settings | self.config.hyperparameters

    def _ending(self, summary: Mapping[str, Any], *, interrupted: bool) -> Ending:
        files: list[tuple[Path, str | None]] = [(self.folder.summary, None), *report_files(self.folder)]
        if self.checkpoint is not None:
            files.append((self.checkpoint, "checkpoint"))
        best = summary["best"]
        metrics = {"best/score": best["score"], "best/epoch": best["epoch"]} if best is not None else {}
        metrics |= metrics_on_test(self.folder, summary)
        # As of a sweep whose trials all diverged: no checkpoint has a finite score.
        status: Status = "interrupted" if interrupted else "failed" if best is None else "finished"
        return Ending(status, metrics, {}, files)
