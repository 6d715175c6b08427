"""Deliver waiting writes to MLflow, turn by turn: as few calls as they need, and several runs at once into a server.

What a run costs is the number of calls: on SQLite five milliseconds of the driver to begin it, five for its metrics,
two for its end. So while many runs wait, a run that goes on gets its parameters with its first metrics, and metrics
from time to time; a run that has ended gets all at once.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from raygpu.errors import TrackingError, one_line
from raygpu.tracking.pending_writes import SUSPECT, Batch, Pending, SetAside, deliver
from raygpu.tracking.runs import Refused, RunTree
from raygpu.tracking.stores import scheme

CROWD = 16
"""Number of runs with waiting writes above which those that go on wait for their next metrics."""
LIVE_S = 10.0
"""Shortest time in seconds between two writes to a run that goes on, in a crowd."""
SPACING_S = 0.1
"""Seconds between two writes to a run, for each run of a crowd, if more than LIVE_S: its calls take 6 % of them."""
WRITERS = {"http": 8, "https": 8, "postgresql": 4, "mysql": 4}
"""Number of runs written at once, by kind of store: a server takes them side by side, and each call waits for its
answer. A SQLite file has one writer. A thread holds two database connections; MLflow's pool has 15."""


@dataclass(frozen=True, slots=True)
class Turn:
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
    ) -> None:
        """Prepare to deliver `pending`, which is changed under `lock`.

        set_aside, advanced: as in `deliver`, called in any thread. given_up: set to end a turn early.
        """
        self.delayed: str | None = None
        """Reason why the store did not take the last failed batch."""
        self.writers = WRITERS.get(scheme(tree.uri), 1)
        self._tree, self._pending, self._lock = tree, pending, lock
        self._set_aside, self._advanced, self._given_up = set_aside, advanced, given_up
        self._written_s: dict[str, float] = {}
        """Moment of the last write to each run that goes on, by trial id."""

    def turn(self, *, closing: bool, settle_s: float | None = None) -> Turn:
        """Deliver the waiting batches.

        closing: whether runs that go on wait no longer. settle_s: after a failed turn, pause before the first call to a
        store that answers again.
        """
        if self._tree.run_id is None:
            return Turn(0, True, 0.0)
        if settle_s is not None:
            if self._away():
                return Turn(0, True, 0.0)
            # A server that comes back first works through requests whose answers nobody waits for any more: a run
            # that one of them begins must be there before it is looked for.
            self._given_up.wait(settle_s)
        queues = list(self._pending.batches.values())
        crowd = len(queues) if len(queues) > CROWD and not closing else 0
        now, spacing_s = time.monotonic(), max(LIVE_S, SPACING_S * crowd)
        ready = deque(list(queue) for queue in queues if not crowd or not self._rests(queue[0], now - spacing_s))
        turn = _Tally(ready, sparing=crowd > 0)
        writers = min(self.writers, len(ready)) or 1
        threads = [threading.Thread(target=self._work, args=(turn,), daemon=True) for _ in range(writers - 1)]
        for thread in threads:
            thread.start()
        self._work(turn)
        for thread in threads:
            thread.join()
        return Turn(turn.delivered, turn.failed or self._given_up.is_set(), turn.cpu_s)

    def _rests(self, batch: Batch, before_s: float) -> bool:
        """Return whether a run that goes on was written to later than `before_s`."""
        return batch.end is None and self._written_s.get(batch.trial_id or "", before_s) > before_s

    def _work(self, turn: _Tally) -> None:
        """Deliver queues, one after the other, until there are no more or the store fails."""
        began_s = time.thread_time()
        while not (turn.failed_for_all or self._given_up.is_set()):
            try:
                queue = turn.queues.popleft()
            except IndexError:
                break
            for batch in queue:
                if not self._deliver(batch, turn):
                    break
        with self._lock:
            turn.cpu_s += time.thread_time() - began_s

    def _deliver(self, batch: Batch, turn: _Tally) -> bool:
        """Deliver a batch; return whether the next one of its run may follow."""
        try:
            if not deliver(self._tree, batch, self._set_aside, self._advanced, sparing=turn.sparing):
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


def content(batch: Batch) -> dict[str, Any]:
    """Return what a batch holds, for the file of refused values."""
    values: dict[str, Any] = {f"{point.name} at step {point.step}": point.value for point in batch.points}
    values |= {**(batch.trial.hyperparameters if batch.trial and not batch.params_sent else {}), **batch.tags}
    return values
