"""Writes that wait for MLflow: merged into as few calls as possible, and kept in a file until delivered."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TextIO

from raygpu.errors import TrackingError
from raygpu.search.trials import EpochResult, Standing, Trial, TrialRecord
from raygpu.tracking.runs import MetricValue, Refused, RunTree, final_points, final_tags, points

Kind = Literal["begin", "restart", "place", "epochs", "end", "gpu"]
POINTS_AT_ONCE = 800
"""Maximum number of metric values in one call; with parameters and tags they stay below MLflow's own limit."""


@dataclass(frozen=True, slots=True)
class Write:
    """One write to MLflow, as a caller gave it."""

    kind: Kind
    trial_id: str | None
    """Trial whose run is written; None for the sweep's own run."""
    value: Any
    """Value by kind. begin, restart: Trial; place: tags; epochs: EpochResults; end: TrialRecord;
    gpu: (elapsed_s, metrics)."""
    time_ms: int
    """Time at which the caller gave the write, in milliseconds since 1970; a late delivery keeps it."""


@dataclass(slots=True)
class Batch:
    """Successive writes to one run. A repeated delivery after a failure goes on where the last one stopped."""

    trial_id: str | None
    writes: list[Write] = field(default_factory=list)
    trial: Trial | None = None
    """Trial whose run the batch begins; None if the run exists already."""
    replace: bool = False
    """Whether an earlier run of the trial is to be deleted first."""
    points: list[MetricValue] = field(default_factory=list)
    tags: dict[str, Any] = field(default_factory=dict)
    end: TrialRecord | None = None
    unsure: bool = False
    """Whether a request for a new run got no answer, so that the run may exist."""
    begun: bool = False
    params_sent: bool = False
    error_sent: bool = False

    def add(self, write: Write) -> None:
        """Add a write to the same run: append its metric values, merge its tags, keep its trial or record."""
        self.writes.append(write)
        match write.kind:
            case "begin":
                self.trial = write.value
            case "place":
                self.tags.update(write.value)
            case "epochs":
                for result in write.value:
                    self.points.extend(points(result, write.time_ms))
            case "end":
                self.end = write.value
                self.tags.update(final_tags(write.value))
                self.points.extend(final_points(write.value, write.time_ms))
            case "gpu":
                elapsed_s, metrics = write.value
                self.points.extend(
                    MetricValue(name, value, elapsed_s, write.time_ms) for name, value in metrics.items()
                )


class Pending:
    """Batches that wait for delivery, by run. Order holds within a run; runs do not wait for each other."""

    def __init__(self, last_epochs: Mapping[str, int]) -> None:
        self.batches: dict[str | None, list[Batch]] = {}
        self._last_epochs = dict(last_epochs)

    def __bool__(self) -> bool:
        return bool(self.batches)

    def known(self, trial_id: str, last_epoch: int) -> None:
        """Note the last epoch that MLflow has of a trial; no effect on a trial with an epoch noted before."""
        self._last_epochs.setdefault(trial_id, last_epoch)

    def add(self, write: Write) -> None:
        """Merge a write into the waiting batches of its run. Epochs that were added before are left out."""
        if write.kind == "epochs":
            last = self._last_epochs.get(write.trial_id or "", 0)
            new = [result for result in write.value if result.epoch > last]
            if not new:
                return
            self._last_epochs[write.trial_id or ""] = max(result.epoch for result in new)
            write = Write(write.kind, write.trial_id, new, write.time_ms)
        queue = self.batches.setdefault(write.trial_id, [])
        if write.kind == "restart":
            # What waits for the run that is about to be deleted need not be written any more.
            unsure = any(batch.unsure for batch in queue)
            self._last_epochs.pop(write.trial_id or "", None)
            queue[:] = [Batch(write.trial_id, trial=write.value, replace=True, unsure=unsure)]
        elif not queue or queue[-1].end is not None:
            queue.append(Batch(write.trial_id))
        queue[-1].add(write)

    def done(self, batch: Batch) -> None:
        """Remove a batch that was delivered or given up."""
        queue = self.batches[batch.trial_id]
        queue.remove(batch)
        if not queue:
            del self.batches[batch.trial_id]

    def writes(self) -> list[Write]:
        """Return all waiting writes, grouped by run."""
        return [write for queue in self.batches.values() for batch in queue for write in batch.writes]


def deliver(
    tree: RunTree, batch: Batch, note: Callable[[TrackingError], None], advanced: Callable[[], None] = lambda: None
) -> None:
    """Write a batch to MLflow. Raises TrackingError if the delivery has to be tried again.

    The next try skips the parts that were written. note: called with the fault of each value that MLflow refuses.
    advanced: called after each part that the store has taken.
    """
    run_id = _run(tree, batch)
    _send(tree, run_id, batch, note, advanced)
    if batch.end is None:
        return
    if batch.end.status == "failed" and batch.end.error and not batch.error_sent:
        try:
            tree.log_text(run_id, batch.end.error, "error.txt")
        except Refused as fault:
            note(fault)
        batch.error_sent = True
        advanced()
    tree.finish(run_id, batch.end.status, batch.writes[-1].time_ms)
    advanced()


def _send(
    tree: RunTree, run_id: str, batch: Batch, note: Callable[[TrackingError], None], advanced: Callable[[], None]
) -> None:
    """Write the batch's metrics, parameters and tags, in calls of limited size."""
    while True:
        params = batch.trial.hyperparameters if batch.trial and not batch.params_sent else {}
        metrics = batch.points[:POINTS_AT_ONCE]
        if not (metrics or params or batch.tags):
            return
        try:
            tree.log(run_id, metrics, params, batch.tags)
        except Refused:
            # One bad value must not take the rest with it.
            for arguments in ({"metrics": metrics}, {"params": params}, {"tags": batch.tags}):
                try:
                    tree.log(run_id, **arguments)
                except Refused as fault:
                    note(fault)
        del batch.points[: len(metrics)]
        batch.tags, batch.params_sent = {}, True
        advanced()


def _run(tree: RunTree, batch: Batch) -> str:
    """Return the id of the batch's run; begin the run if the batch says so. Raises Refused if there is no run."""
    if batch.trial_id is None:
        assert tree.run_id is not None
        return tree.run_id
    if batch.trial is not None and not batch.begun:
        if batch.unsure:
            tree.find_trial(batch.trial_id)
        if batch.replace:
            tree.forget_trial(batch.trial_id)
            batch.replace = False
        batch.unsure = True
        run_id = tree.create_trial(batch.trial, batch.tags, batch.writes[0].time_ms)
        batch.begun, batch.unsure = True, False
        if batch.end is None:
            batch.tags = {}  # sent with the new run
        return run_id
    if (child := tree.children.get(batch.trial_id)) is None:
        raise Refused(f"tracking: trial {batch.trial_id} has no run in MLflow; what belongs to it was dropped")
    return child.run_id


class Journal:
    """File of the waiting writes: a process that is killed leaves them to the next one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: TextIO | None = None

    def take_over(self) -> list[Write]:
        """Return the writes that an earlier process left, which stay here until delivered. Raises TrackingError."""
        writes = load(self.path) if self.path.is_file() else []
        if writes:  # written anew, without a last line that was cut
            temporary = self.path.with_name(f"{self.path.name}.tmp")
            temporary.write_text("".join(_line(write) for write in writes), encoding="utf-8")
            temporary.replace(self.path)
            self._open()
        return writes

    def _open(self) -> TextIO:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a", encoding="utf-8", buffering=1)
        return self._file

    def add(self, write: Write) -> None:
        """Append a write and hand it to the operating system, so that it outlives this process."""
        (self._file or self._open()).write(_line(write))

    def clear(self) -> None:
        """Empty the file, once all writes are delivered."""
        if self._file is not None:
            self._file.truncate(0)

    def close(self, waiting: Iterable[Write]) -> None:
        """Close the file with only the writes that still wait in it; delete the file if there are none."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self.path.unlink(missing_ok=True)
        if lines := [_line(write) for write in waiting]:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text("".join(lines), encoding="utf-8")


def load(path: Path) -> list[Write]:
    """Read the writes of a journal, without a last line that is cut off. Raises TrackingError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [_decode(json.loads(line)) for line in lines if line.endswith("\n") and line.strip()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrackingError(f"tracking: {path} cannot be read as waiting writes ({error}); move it away") from error


def _line(write: Write) -> str:
    fields = {"kind": write.kind, "trial_id": write.trial_id, "time_ms": write.time_ms, "value": _encode(write)}
    return json.dumps(fields) + "\n"


def _trial(trial: Trial) -> dict[str, Any]:
    # MLflow keeps parameters as text, and a tuple must not come back as a list.
    values = {name: str(value) for name, value in trial.hyperparameters.items()}
    return {"trial_id": trial.trial_id, "seed": trial.seed, "hyperparameters": values}


def _encode(write: Write) -> Any:
    value = write.value
    if write.kind in ("begin", "restart"):
        return _trial(value)
    if write.kind == "epochs":
        return [{**asdict(result), "metrics": _floats(result.metrics)} for result in value]
    if write.kind == "end":
        names = ("status", "diverged", "error", "reason", "rgu_hours", "which")
        ending = {name: getattr(value, name) for name in names}
        return {"trial": _trial(value.trial), "standing": asdict(value.standing), **ending}
    if write.kind == "gpu":
        return [value[0], _floats(value[1])]
    return {name: str(text) for name, text in value.items()}


def _floats(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}


def _decode(line: Mapping[str, Any]) -> Write:
    value: Any = line["value"]
    match line["kind"]:
        case "begin" | "restart":
            value = Trial(**value)
        case "epochs":
            value = [EpochResult(**result) for result in value]
        case "end":
            standing = Standing(**value.get("standing", {}))
            value = TrialRecord(**{**value, "trial": Trial(**value["trial"]), "standing": standing})
    return Write(line["kind"], line["trial_id"], value, line["time_ms"])
