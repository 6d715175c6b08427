"""Deliver waiting writes to MLflow, turn by turn: as few calls as they need, and several runs at once into a server.

What a run costs is the number of calls: on SQLite five milliseconds of the driver to begin it, five for its metrics,
two for its end. So while many runs wait, a run that goes on gets its parameters with its first metrics, and metrics
from time to time; a run that has ended gets all at once. While more wait than a thread writes in some seconds, other
processes write to a SQLite file, too, as far as the CPUs allow.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from raygpu.errors import TrackingError, one_line
from raygpu.tracking import sqlite_file
from raygpu.tracking.pending_writes import SUSPECT, Batch, Pending, SetAside, deliver
from raygpu.tracking.runs import Refused, RunTree
from raygpu.tracking.store_process import StoreProcess
from raygpu.tracking.stores import scheme, sqlite_path

CROWD = 16
"""Number of runs with waiting writes above which those that go on wait for their next metrics."""
LIVE_S = 10.0
"""Shortest time in seconds between two writes to a run that goes on, in a crowd."""
SPACING_S = 0.1
"""Seconds between two writes to a run, for each run of a crowd, if more than LIVE_S: its calls take 6 % of them."""
WRITERS = {"http": 8, "https": 8, "postgresql": 4, "mysql": 4}
"""Number of runs written at once, by kind of store: a server takes them side by side, and each call waits for its
answer. To a SQLite file one thread writes, and other processes. A thread holds two database connections; MLflow's pool
has 15."""
MOST_PROCESSES = 3
"""Largest number of other processes that write to a SQLite file: it is locked for a third of the time that a run takes
one process."""
HELP_S = 5.0
"""Seconds of deliveries still to do for each process that writes, from which on another one starts: it takes two until
it writes."""
TICK_S = 0.1


@dataclass(frozen=True, slots=True)
class DeliveryTurn:
    """The outcome of a turn over all waiting batches."""

    delivered: int
    """Number of batches that were delivered, or set aside."""
    failed: bool
    """Whether a batch that was tried still waits: the store failed."""
    cpu_s: float


class Deliverer:
    """Sends batches to the store; a failed batch stays, with its successors."""

    def __init__(
        self,
        tree: RunTree,
        pending: Pending,
        lock: AbstractContextManager[Any],
        set_aside: SetAside,
        advanced: Callable[[], None],
        given_up: threading.Event,
        cpus: Callable[[], float] = lambda: 1.0,
    ) -> None:
        """Prepare to deliver `pending`, which is changed under `lock`.

        set_aside, advanced: as in `deliver`, called in any thread. given_up: set to end a turn early. cpus: returns the
        number of CPUs that deliveries may take at present.
        """
        self.delayed: str | None = None
        """Reason why the store did not take the last failed batch."""
        self.writers = WRITERS.get(scheme(tree.uri), 1)
        self._tree, self._pending, self._lock = tree, pending, lock
        self._set_aside, self._advanced, self._given_up = set_aside, advanced, given_up
        self._cpus = cpus
        self.processes: list[StoreProcess] = []
        """Other processes that write to the store, or are about to, or have ended."""
        self._takes_processes = scheme(tree.uri) == "sqlite" and sqlite_file.has_log(sqlite_path(tree.uri))
        self._written_s: dict[str, float] = {}
        """Moment of the last write to each run that goes on, by trial id."""

    def turn(self, *, closing: bool, settle_s: float | None = None) -> DeliveryTurn:
        """Deliver the waiting batches.

        closing: whether runs that go on wait no longer. settle_s: after a failed turn, pause before the first call to a
        store that answers again.
        """
        if self._tree.run_id is None:
            return DeliveryTurn(0, True, 0.0)
        if settle_s is not None:
            if self._away():
                return DeliveryTurn(0, True, 0.0)
            # A server that comes back first works through requests whose answers nobody waits for any more: a run
            # that one of them begins must be there before it is looked for.
            self._given_up.wait(settle_s)
        queues = list(self._pending.batches.values())
        crowd = len(queues) if len(queues) > CROWD and not closing else 0
        now, spacing_s = time.monotonic(), max(LIVE_S, SPACING_S * crowd)
        ready = deque(list(queue) for queue in queues if not crowd or not self._rests(queue[0], now - spacing_s))
        turn = _Tally(ready, sparing=crowd > 0)
        writers = min(self.writers, len(ready)) or 1
        for _ in range(writers - 1):
            turn.start(self._work, turn)
        if len(ready) > 1:
            for process in self.processes:
                turn.start(self._work_beside, turn, process)
        self._work(turn, calls_for_help=True)
        for thread in turn.threads:
            thread.join()
        return DeliveryTurn(turn.delivered, turn.failed or self._given_up.is_set(), turn.cpu_s)

    def close(self) -> None:
        """End the other processes that write."""
        for process in self.processes:
            process.close()
        self.processes.clear()

    def _rests(self, batch: Batch, before_s: float) -> bool:
        """Return whether a run that goes on was written to later than `before_s`."""
        return batch.end is None and self._written_s.get(batch.trial_id or "", before_s) > before_s

    def _work(self, turn: _Tally, process: StoreProcess | None = None, *, calls_for_help: bool = False) -> None:
        """Deliver queues, one after the other, until there are no more or the store fails.

        process: process that writes; None for this one. calls_for_help: whether others are started where many wait.
        """
        before_s, tree = _cpu_s(process), self._tree
        if process is not None:
            tree = copy(tree)
            tree.mlflow = process
        while not self._ends(turn, process):
            try:
                queue = turn.queues.popleft()
            except IndexError:
                break
            for batch in queue:
                if not self._deliver(batch, turn, tree):
                    break
            if calls_for_help:
                self._call_for_help(turn)
        with self._lock:
            turn.cpu_s += _cpu_s(process) - before_s

    def _work_beside(self, turn: _Tally, process: StoreProcess) -> None:
        """Deliver queues by another process, once it is ready."""
        while not process.ready(TICK_S):
            if not turn.queues or self._ends(turn, process):
                return
        self._work(turn, process)

    def _ends(self, turn: _Tally, process: StoreProcess | None) -> bool:
        """Return whether a process, None for this one, is to write no more in a turn."""
        return turn.failed_for_all or self._given_up.is_set() or (process is not None and process.is_lost)

    def _call_for_help(self, turn: _Tally) -> None:
        """Start another process to write, if that pays and the CPUs allow it."""
        writers = 1 + len(self.processes)  # those that have ended count, too: what fails is not tried again and again
        if turn.delivered < CROWD or turn.left_s < HELP_S * writers or writers >= min(1 + MOST_PROCESSES, self._cpus()):
            return
        if not (self._takes_processes and all(process.is_ready for process in self.processes)):
            return
        try:
            process = StoreProcess(self._tree.uri)
        except Exception:  # noqa: BLE001 - no memory for another process, say: this one writes on
            self._takes_processes = False
            return
        self.processes.append(process)
        turn.start(self._work_beside, turn, process)

    def _deliver(self, batch: Batch, turn: _Tally, tree: RunTree) -> bool:
        """Deliver a batch; return whether the next one of its run may follow."""
        try:
            if not deliver(tree, batch, self._set_aside, self._advanced, sparing=turn.sparing):
                self._note(batch)
                return False
        except Refused as fault:
            self._set_aside(fault, batch.trial_id, content(batch))
        except TrackingError as fault:
            self.delayed = str(fault)
            if self._away() or not self._takes_others():
                turn.failed = turn.failed_for_all = True
                return False
            batch.failures += not batch.finished  # a file may wait for its store
            if batch.failures < 2 * SUSPECT:
                turn.failed = True
                return False
            self._set_aside(fault, batch.trial_id, content(batch))
        except Exception as error:  # noqa: BLE001 - a fault of ours in one write must not end all others
            ours = TrackingError(f"tracking: a write was dropped: {one_line(error)}")
            self._set_aside(ours, batch.trial_id, content(batch))
        with self._lock:
            self._pending.done(batch)
            turn.delivered += 1
        self._note(batch)
        self._advanced()
        return True

    def _note(self, batch: Batch) -> None:
        """Note that a run has been written to; nothing of one that has ended."""
        if batch.trial_id is not None and batch.end is None:
            self._written_s[batch.trial_id] = time.monotonic()
        else:
            self._written_s.pop(batch.trial_id or "", None)

    def _away(self) -> bool:
        try:
            self._tree.ping()
        except TrackingError as fault:
            self.delayed = str(fault)
            return True
        return False

    def _takes_others(self) -> bool:
        """Return whether the store takes a write to the run itself, so that a failure is another write's own."""
        assert self._tree.run_id is not None
        try:
            self._tree.probe(self._tree.run_id)
        except TrackingError as fault:
            self.delayed = str(fault)
            return False
        return True


@dataclass(slots=True)
class _Tally:
    """A turn under way, shared by its threads."""

    queues: deque[list[Batch]]
    sparing: bool
    """Whether a run that goes on gets its parameters with its first metrics."""
    delivered: int = 0
    failed: bool = False
    failed_for_all: bool = False
    """Whether the store takes nothing at present."""
    cpu_s: float = 0.0
    began_s: float = field(default_factory=time.monotonic)
    threads: list[threading.Thread] = field(default_factory=list)

    @property
    def left_s(self) -> float:
        """Return how long the waiting queues take, by those of this turn."""
        return len(self.queues) * (time.monotonic() - self.began_s) / max(1, self.delivered)

    def start(self, work: Callable[..., None], *arguments: Any) -> None:
        """Start a thread that delivers."""
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self.threads.append(thread)
        thread.start()


def _cpu_s(process: StoreProcess | None) -> float:
    """Return the CPU time of this thread, and of the process that writes for it."""
    return time.thread_time() + (process.cpu_s if process is not None else 0.0)


def content(batch: Batch) -> dict[str, Any]:
    """Return what a batch holds, for the file of refused values."""
    values: dict[str, Any] = {f"{point.name} at step {point.step}": point.value for point in batch.points}
    values |= {**(batch.trial.hyperparameters if batch.trial and not batch.params_sent else {}), **batch.tags}
    return values
