"""Track a run from start to end: begun in the background, closed with the run's files as artifacts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from raygpu.config import ProblemConfig, TrainConfig
from raygpu.errors import TrackingError
from raygpu.records.run_directory import RunDirectory
from raygpu.redaction import redacted
from raygpu.search.trials import Status
from raygpu.tracking.runs import RunTree
from raygpu.tracking.stores import scheme, sqlite_path, ui_command
from raygpu.tracking.writer import CPU_SHARE, NullWriter, Writer

OPEN_S = 60.0
FUSED_CPU_SHARE = 0.25
UI_PORT = 5000


def absolute(uri: str) -> str:
    """Return a tracking URI with an absolute path, if it is a SQLite file: a resume may start in another folder."""
    if scheme(uri) != "sqlite":
        return uri
    _, question, options = uri.partition("?")
    return f"sqlite:///{sqlite_path(uri)}{question}{options}"


def open_store(config: ProblemConfig) -> RunTree | None:
    """Import MLflow, which takes seconds, and open the store; None where tracking is off. Raises TrackingError."""
    if not config.tracking.enabled:
        return None
    return RunTree.open(config.tracking.uri, config.tracking.experiment)


class Session(ABC):
    """A run in MLflow with the runs below it, begun and written in the writer's thread."""

    kind: ClassVar[str]
    """Command that makes the run, `sweep` or `train`."""
    writer: Writer | NullWriter

    def __init__(
        self, config: ProblemConfig, folder: RunDirectory, tree: RunTree | None, *, cpu_share: float = CPU_SHARE
    ) -> None:
        """Start the writer, if tracking is on. cpu_share: largest share of this machine's CPUs for writing.

        tree: the open store, or None where tracking is off.
        """
        self.config = config
        self.folder = folder
        self.enabled = tree is not None
        self.run_id: str | None = folder.read_run().get("mlflow_run_id")
        self._fault: str | None = None
        self._lines: list[str] = []
        self.writer = NullWriter()
        if tree is not None:
            self.writer = Writer(lambda: self._begin(tree), folder.journal, cpu_share=cpu_share)

    def _begin(self, tree: RunTree) -> RunTree:
        if self.config.data.synthetic:
            tree.tags["raygpu.data"] = "synthetic"
        if self.run_id is not None:
            tree.resume_run(self.run_id)
        else:
            self.run_id = tree.start_run(self.folder.name, self.tags(), self.params(), self.kind)
            self.folder.write_run({"mlflow_run_id": self.run_id})
        try:
            tree.log_artifact(self.run_id, self.folder.config)
        except TrackingError as error:  # runs and metrics can be kept where files cannot
            self._lines.append(str(error))
        return tree

    def tags(self) -> dict[str, Any]:
        """Return the tags of the run, beside those of every run."""
        return {}

    def params(self) -> dict[str, Any]:
        """Return the parameters of the run."""
        return flat(self.config)

    def address_line(self) -> str:
        """Return the line that tells where to watch the run, or that tracking is off."""
        if not self.enabled:
            return "MLflow: off (tracking.enabled = false)"
        uri = self.config.tracking.uri
        if scheme(uri) in ("http", "https"):
            return f"MLflow UI: {redacted(uri)}"
        return f"MLflow UI: http://127.0.0.1:{UI_PORT}, once started by: {ui_command(uri, UI_PORT)}"

    def next_line(self) -> str | None:
        """Return the line that tells how to see the run's curves, once it has ended."""
        if not isinstance(self.writer, Writer) or self._fault is not None:
            return None
        tree = self.writer.ready(0)
        whose = "every trial's" if self.kind == "sweep" else "its"
        if tree.served:
            return f"{whose} curves: {tree.ui_url}"
        return f"{whose} curves: {ui_command(tree.uri, UI_PORT)}, then {tree.ui_url}"

    def identity(self) -> dict[str, str | int | None]:
        """Return the `tracking` section of `summary.json`; `close` adds what is missing in MLflow."""
        if not self.enabled:
            return {"uri": None, "run_id": None}
        self.tree()
        return {"uri": redacted(self.config.tracking.uri), "run_id": self.run_id, "undelivered": 0, "fault": None}

    def tree(self) -> RunTree | None:
        """Return the tree that holds the run; None where tracking is off, or its store is out of reach."""
        if not isinstance(self.writer, Writer):
            return None
        try:
            tree = self.writer.ready(OPEN_S)
        except TrackingError as error:
            self._fault = str(error)
            return None
        self._fault = None  # a store that came late is there now
        return tree

    def close(
        self, summary: dict[str, Any], *, interrupted: bool, say: Callable[[str], None] | None = None
    ) -> list[str]:
        """Deliver the waiting writes, add the run's files and end the run; return lines for the user.

        This takes as long as the store accepts writes; `say` is called with lines on the progress. Writes and faults
        that remain are noted in the summary's `tracking`, and in its file.
        """
        patience_s = self.config.tracking.patience_s
        undelivered = self.writer.close(patience_s, say)
        if not isinstance(self.writer, Writer):
            return []
        if undelivered:
            self._note(summary, undelivered=undelivered)
        elif self.writer.num_earlier:
            self._lines.append(
                f"MLflow: {self.writer.num_earlier:,} writes that an earlier start had left were delivered"
            )
        lines = [*self._lines, *(f"MLflow refused: {fault}" for fault in self.writer.faults)]
        try:
            if (tree := self.tree()) is not None:
                tree.patience_s = 0.0 if undelivered else patience_s  # what has been given up is not waited for again
                self._end(summary, interrupted=interrupted)
        except TrackingError as error:
            self._fault = str(error)
        if self._fault is not None:
            self._note(summary, fault=self._fault)
            lines.append(self._fault)
        if undelivered or self._fault is not None:
            what = f"{undelivered:,} writes are not in MLflow" if undelivered else "the run is not complete there"
            where = f"; they lie in {self.folder.journal}" if undelivered else ""
            why = f" ({self.writer.delayed})" if undelivered and self.writer.delayed and self._fault is None else ""
            lines.append(f"MLflow: {what}{why}{where}; deliver by: {self.folder.resumed_by(self.kind)}")
        return lines

    def _missing(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        """Return a tag with the number of undelivered writes; 0 once a later start has delivered them."""
        lacks = summary["tracking"]["undelivered"]
        earlier = isinstance(self.writer, Writer) and self.writer.num_earlier
        return {"raygpu.undelivered": lacks} if lacks or earlier else {}

    def _note(self, summary: dict[str, Any], **values: Any) -> None:
        """Note in the summary, and in its file, which parts of the run are missing in MLflow."""
        summary["tracking"] = summary["tracking"] | values
        self.folder.write_summary(summary)

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
    def _end(self, summary: Mapping[str, Any], *, interrupted: bool) -> None:
        """Add the run's files, and end it."""


class SweepSession(Session):
    """The run of a sweep, and one run for each of its trials."""

    kind = "sweep"

    def _end(self, summary: Mapping[str, Any], *, interrupted: bool) -> None:
        tree = self.writer.ready(0)
        assert tree is not None
        assert self.run_id is not None
        for path in (self.folder.summary, self.folder.trials_csv, self.folder.best_toml):
            if path.is_file():
                tree.log_artifact(self.run_id, path)
        best = summary["best"]
        if best is not None:  # none, where every trial failed or diverged
            for path in sorted((self.folder.checkpoints / best["trial_id"]).glob("*")):
                if path.is_file():
                    tree.log_artifact(self.run_id, path, "best")
            for path in sorted(self.folder.best.glob("*")):
                tree.log_artifact(self.run_id, path, "best")
        counts = {f"trials/{key}": summary[key] for key in ("completed", "diverged", "stopped_early", "failed")}
        metrics = counts | ({"best/score": best["score"], "best/epoch": best["epoch"]} if best is not None else {})
        tags = self._missing(summary) | {"raygpu.score": f"{summary['score']} epoch"}
        tags |= {"raygpu.best_trial": best["trial_id"]} if best is not None else {}
        status: Status = "interrupted" if interrupted else "failed" if best is None else "finished"
        tree.end_run(self.run_id, status, metrics, tags)


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
        own = ("hyperparameters.", "source.")
        settings = {name: value for name, value in flat(self.config).items() if not name.startswith(own)}
        return settings | self.config.hyperparameters

    def _end(self, summary: Mapping[str, Any], *, interrupted: bool) -> None:
        tree = self.writer.ready(0)
        assert tree is not None
        assert self.run_id is not None
        tree.log_artifact(self.run_id, self.folder.summary)
        if self.checkpoint is not None:
            tree.log_artifact(self.run_id, self.checkpoint, "checkpoint")
        best = summary["best"]
        metrics = {"best/score": best["score"], "best/epoch": best["epoch"]} if best is not None else {}
        status: Status = "interrupted" if interrupted else "finished"
        tree.end_run(self.run_id, status, metrics, self._missing(summary))


def flat(config: ProblemConfig) -> dict[str, Any]:
    """Return the configuration as MLflow parameters, by dotted name, without its `tracking` section."""
    flat: dict[str, Any] = {}
    for name, value in config.model_dump(exclude_none=True, exclude={"tracking"}).items():
        if isinstance(value, dict):
            flat |= {f"{name}.{key}": inner for key, inner in value.items()}
        else:
            flat[name] = value
    return flat
