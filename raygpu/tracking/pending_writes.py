"""Writes that wait for MLflow: merged into as few calls as possible, and sent so that one that fails stops no other."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from raygpu.errors import TrackingError
from raygpu.records.trial_writer import Kind
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import Trial
from raygpu.tracking.runs import Refused, RunTree
from raygpu.tracking.values import ERROR_TAG, MetricValue, final_points, final_tags, points

SetAside = Callable[[TrackingError, str | None, Mapping[str, Any]], None]
"""Function that takes what MLflow refuses: the fault, the trial's id (None of the run itself), and the values."""
POINTS_AT_ONCE = 800
"""Maximum number of metric values in one call; with parameters and tags they stay below MLflow's own limit."""
SUSPECT = 3
"""Number of failures, while the store takes other writes, after which a batch is sent value by value."""
REPEATS = 3
"""Number of times that a single value is sent before it is set aside."""
REPEAT_S = 0.5


@dataclass(frozen=True, slots=True)
class Write:
    """One write to MLflow, as a caller gave it."""

    kind: Kind
    trial_id: str | None
    """Trial whose run is written; None for the sweep's own run."""
    value: Any
    """Value by kind. begin, restart: Trial; place: tags; epochs: EpochResults; metrics: by name; end: TrialRecord;
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
    finished: bool = False
    """Whether the run has its final status; what is left is its error's file."""
    failures: int = 0
    """Number of failures while the store took other writes."""

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
            case "metrics":
                values = write.value.items()
                self.points.extend(MetricValue(name, value, 0, write.time_ms) for name, value in values)
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

    def __init__(self) -> None:
        self.batches: dict[str | None, list[Batch]] = {}
        self._last_epochs: dict[str, int] = {}
        self._last_ms: dict[str | None, int] = {}
        """Time of each run's last metrics that are of no epoch."""

    def __bool__(self) -> bool:
        return bool(self.batches)

    def known(self, trial_id: str, last_epoch: int, last_ms: int = 0) -> None:
        """Note the last epoch that MLflow has of a trial, and the time of its last metrics that are of no epoch; no
        effect on a trial of which they were noted before."""
        self._last_epochs.setdefault(trial_id, last_epoch)
        self._last_ms.setdefault(trial_id, last_ms)

    def add(self, write: Write) -> None:
        """Merge a write into the waiting batches of its run. Epochs that were added before are left out.

        Metrics of no epoch are all of step 0, of which MLflow takes the latest value for the last one. So their times
        rise with the writes, whatever the clock does.
        """
        if write.kind in ("metrics", "end"):
            write = replace(write, time_ms=max(write.time_ms, self._last_ms.get(write.trial_id, 0) + 1))
            self._last_ms[write.trial_id] = write.time_ms
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
            self._last_epochs[write.trial_id or ""] = 0
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
    tree: RunTree,
    batch: Batch,
    set_aside: SetAside,
    advanced: Callable[[], None] = lambda: None,
    *,
    sparing: bool = False,
) -> bool:
    """Write a batch to MLflow; return whether all of it was. Raises TrackingError if another try is needed.

    The next try skips the parts that were written. set_aside: called with values that MLflow refuses, or that a store
    which takes others fails to take again and again. advanced: called after each part that the store has taken.
    sparing: whether the parameters of a run without metrics wait for these, which saves a call.
    """
    run_id = _run(tree, batch)
    if sparing and batch.end is None and not batch.points and batch.trial is not None and not batch.params_sent:
        return False
    _send(tree, run_id, batch, set_aside, advanced)
    if batch.end is None:
        return True
    if not batch.finished:
        tree.finish(run_id, batch.end.status, batch.writes[-1].time_ms)
        batch.finished = True
        advanced()
    if batch.end.status == "failed" and batch.end.error:
        try:
            tree.log_text(run_id, batch.end.error, "error.txt")
        except Refused as fault:
            set_aside(fault, batch.trial_id, {"error.txt": batch.end.error})
        advanced()
    return True


def _send(tree: RunTree, run_id: str, batch: Batch, set_aside: SetAside, advanced: Callable[[], None]) -> None:
    """Write the batch's metrics, parameters and tags, in calls of limited size."""
    while True:
        params = batch.trial.hyperparameters if batch.trial and not batch.params_sent else {}
        metrics = _next_points(batch.points)
        if not (metrics or params or batch.tags):
            return
        try:
            tree.log(run_id, metrics, params, batch.tags)
        except TrackingError as fault:
            if not isinstance(fault, Refused) and batch.failures < SUSPECT:
                raise
            tree.probe(run_id)  # refused, where the run itself is gone
            aside = lambda fault, value: set_aside(fault, batch.trial_id, dict([value]))  # noqa: E731
            run = _SuspectRun(tree, run_id, aside, advanced)
            run.send(metrics, params, batch.tags)  # one bad value must not take the rest with it
        del batch.points[: len(metrics)]
        batch.tags, batch.params_sent = {}, True
        advanced()


def _next_points(points: Sequence[MetricValue]) -> Sequence[MetricValue]:
    """Return the points of the next call: whole steps, as far as one step is not too much for a call.

    A process that goes on with a run takes the last step that it finds there for complete.
    """
    end = POINTS_AT_ONCE
    while 0 < end < len(points) and points[end - 1].step == points[end].step:
        end -= 1
    return points[: end or POINTS_AT_ONCE]


Value = tuple[str, Any]
"""Name and content of a metric's point, a parameter or a tag."""


@dataclass(frozen=True, slots=True)
class _SuspectRun:
    """A run that takes some values and fails with others. Raises TrackingError if it takes nothing any more."""

    tree: RunTree
    run_id: str
    set_aside: Callable[[TrackingError, Value], None]
    advanced: Callable[[], None]

    def send(self, metrics: Sequence[MetricValue], params: Mapping[str, Any], tags: Mapping[str, Any]) -> None:
        """Log all that the run takes, and set aside the rest."""
        tree, run_id = self.tree, self.run_id
        self._halve([(each.name, each) for each in metrics], lambda part: tree.log(run_id, [one for _, one in part]))
        self._halve(list(params.items()), lambda part: tree.log(run_id, params=dict(part)))
        self._halve(list(tags.items()), lambda part: tree.log(run_id, tags=dict(part)))

    def _halve(self, values: Sequence[Value], log: Callable[[Sequence[Value]], None]) -> None:
        """Log values; where that fails, by halves, until single values are left."""
        if not values:
            return
        if len(values) == 1:
            return self._log_one(values[0], log)
        try:
            log(values)
            self.advanced()
        except TrackingError:
            self.tree.probe(self.run_id)
            middle = len(values) // 2
            self._halve(values[:middle], log)
            self._halve(values[middle:], log)

    def _log_one(self, value: Value, log: Callable[[Sequence[Value]], None]) -> None:
        """Log a value; set it aside if it is refused, or fails again and again while the run takes others."""
        for retries in reversed(range(REPEATS)):
            try:
                log([value])
                return self.advanced()
            except TrackingError as fault:
                self.tree.probe(self.run_id)
                self.advanced()  # the store takes writes
                if isinstance(fault, Refused) or not retries:
                    return self.set_aside(fault, value)
            time.sleep(REPEAT_S)


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
        tags = {name: value for name, value in batch.tags.items() if name != ERROR_TAG}
        run_id = tree.create_trial(batch.trial, tags, batch.writes[0].time_ms)
        batch.begun, batch.unsure = True, False
        # The user's text goes later, where the store's refusal does not take the run with it.
        batch.tags = {name: batch.tags[name] for name in batch.tags if name == ERROR_TAG}
        return run_id
    if (child := tree.children.get(batch.trial_id)) is None:
        raise Refused(f"tracking: trial {batch.trial_id} has no run in MLflow; what belongs to it was dropped")
    return child.run_id
