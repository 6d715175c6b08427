"""Write to MLflow in a thread of its own, so that no caller waits: merged, in order, and repeated until delivered.

    writer = Writer(lambda: RunTree.open(uri, "raygpu"), journal=folder / "undelivered.jsonl")
    tree = writer.ready(120)                 # MLflow is imported meanwhile
    tree.start_run("digits", {}, {})
    writer.begin(trial)
    writer.epochs("t0000", [result])
    lost = writer.close(30)                  # waits while the store takes writes, 30 s while it takes none;
                                             # what is left lies in the journal, for the next Writer to deliver

Each call costs MLflow milliseconds of CPU, so the thread lets writes gather, and rests longer the more its turns cost.
`deliverer.Deliverer` sends them.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raygpu.errors import TrackingError, one_line
from raygpu.records.trial_writer import Kind, TrialWriter
from raygpu.tracking import client
from raygpu.tracking.deliverer import Deliverer
from raygpu.tracking.kept_writes import KeptWrites
from raygpu.tracking.pending_writes import Pending, Write
from raygpu.tracking.runs import Refused, RunTree

CPU_SHARE = 0.025
"""Share of this machine's CPUs that the thread takes by default; longer rests also merge more writes."""
LONGEST_REST_S = 15.0
LONGEST_RETRY_S = 30.0
MOST_ENDED = 32
"""Number of ended runs with waiting writes from which on the thread rests no longer than its interval."""
MAX_FAULTS = 100
SAY_S = 10.0
"""Seconds between two lines on the writes still to be delivered at the end."""
TICK_S = 0.2


class Replaced(Exception):
    """Another file has taken the place of the store's, and may lack what was delivered since the journal was empty."""


@dataclass(frozen=True, slots=True)
class CpuLimit:
    """Limit of the CPU time for writing."""

    share: float = CPU_SHARE
    """Largest share of the CPUs until the end of the run."""
    num_cpus: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))


class Writer(TrialWriter):
    """Queue for writes to MLflow, delivered by a thread. All methods but `ready` and `close` return immediately."""

    def __init__(
        self,
        tree: Callable[[], RunTree],
        journal: Path,
        interval_s: float = 0.5,
        cpus: CpuLimit | None = None,
        num_begun: Callable[[], int] = lambda: 0,
    ) -> None:
        """Start the thread. tree: opens the run tree; called in the thread until it succeeds.

        journal: file of the waiting writes. Writes that an earlier writer left there are delivered first; `tree` then
        has its run resumed. interval_s: shortest time for which writes gather. cpus: limit of the CPU time;
        default: of a thread that has little to write. num_begun: number of parts that the store has taken while `tree`
        opens it. Raises TrackingError if the journal cannot be read.
        """
        super().__init__()
        self.faults: list[str] = []
        """Faults of writes that MLflow refused for good or the disk did not take, a line for each different fault."""
        self.delayed: str | None = None
        """Reason why writes wait at present; None while they are delivered."""
        self._kept = KeptWrites(journal, self._note)
        self._lock = self._kept.lock
        self._interval_s = interval_s
        self._cpu_limit = cpus or CpuLimit()
        self._tree: RunTree | None = None
        self._failure: TrackingError | None = None
        self._incoming = deque(self._kept.earlier)
        self.ended.update(write.trial_id for write in self._incoming if write.kind == "end" and write.trial_id)
        self.num_earlier = len(self._incoming)
        """Number of writes that an earlier writer had left."""
        self._pending = Pending()
        self._opened, self._wake = threading.Event(), threading.Event()
        if self._incoming:
            self._wake.set()
        self._closing, self._abandoned = threading.Event(), threading.Event()
        self.interrupted = False
        """Whether Ctrl-C has ended the wait for the deliveries."""
        self._is_replaced = False
        """Whether the store may lack writes that only the journal has."""
        self._undelivered: int | None = None
        self._num_begun = num_begun
        self._taken = 0
        """Number of parts of writes that the store has taken so far: while it grows, deliveries make progress."""
        self._thread = threading.Thread(target=self._run, args=(tree,), name="raygpu-tracking", daemon=True)
        self._thread.start()

    def ready(self, timeout_s: float) -> RunTree:
        """Wait for the run tree and return it. Raises TrackingError if it cannot be opened within `timeout_s`."""
        if not self._opened.wait(timeout_s):
            late = f"tracking: the store was not ready after {timeout_s:g} s; is it within reach?"
            raise TrackingError(self.delayed or late)
        if self._failure is not None:
            raise self._failure
        assert self._tree is not None
        return self._tree

    @property
    def num_refused(self) -> int:
        """Number of values that MLflow refused, and of damaged writes: set aside, and never delivered."""
        return self._kept.num_refused

    @property
    def waiting(self) -> int:
        """Return the number of writes that are not delivered yet."""
        with self._lock:
            return len(self._pending.writes()) + len(self._incoming)

    def finish(self) -> None:
        """Deliver the waiting writes without rests, and take no more. Returns at once."""
        self._closing.set()
        self._wake.set()

    def close(self, patience_s: float, say: Callable[[str], None] | None = None) -> int:
        """Deliver the waiting writes while the store accepts them; return the number of writes left in the journal.

        patience_s: a store that accepts nothing for that long is given up. Ctrl-C ends the wait too. say: called every
        SAY_S seconds with a line on the writes left.
        """
        if self._undelivered is None:
            self.finish()
            try:
                self._await(patience_s, say or (lambda line: None))
            except KeyboardInterrupt:
                self.interrupted = True  # what is left is kept
            self._abandoned.set()  # a thread that still hangs in a call ends after it
            doubt = self._doubt()
            is_stored = doubt is None and (self._tree is None or self._tree.keep(now=True))
            self.delayed = self.delayed or doubt
            with self._lock:
                writes = [*self._pending.writes(), *self._incoming]
                self._kept.close(writes, delivered=is_stored)
            self._undelivered = len(writes) if doubt is None else max(len(writes), self._kept.num_lines)
        return self._undelivered

    def _doubt(self) -> str | None:
        """Return why the store may lack writes that were delivered; None if it has them."""
        try:
            if self._tree is not None:
                self._tree.in_place.require_whole()
        except TrackingError as error:
            return str(error)
        return (self.delayed or "the store's file was replaced") if self._is_replaced else None

    def _await(self, patience_s: float, say: Callable[[str], None]) -> None:
        """Wait for the thread's end, or until the store has taken nothing for `patience_s`."""
        first, began = self.waiting, time.monotonic()
        num_taken, moved, said = self._progress(), began, began
        while self._thread.is_alive():
            now = time.monotonic()
            if (progress := self._progress()) != num_taken:
                num_taken, moved = progress, now
            elif now - moved >= patience_s:
                return
            if now - said >= SAY_S:
                said = now
                say(self._left(first, now - began, now - moved))
            self._thread.join(min(TICK_S, max(0.0, moved + patience_s - now)))

    def _progress(self) -> int:
        return self._taken + self._num_begun()

    def _left(self, first: int, waited_s: float, idle_s: float) -> str:
        """Return a line on what is still to be delivered, and how fast that goes."""
        num_waiting = self.waiting
        with self._lock:
            runs = len(self._pending.batches)
        line = f"MLflow: {num_waiting:,} writes of {runs:,} runs are still to be delivered"
        if idle_s >= SAY_S:
            return f"{line}; the store has taken none for {idle_s:.0f} s{f': {self.delayed}' if self.delayed else ''}"
        rate = (first - num_waiting) / waited_s
        return f"{line}, {rate:.3g} a second{f', about {num_waiting / rate:.0f} s left' if rate > 0 else ''}"

    def _put(self, kind: Kind, trial_id: str | None, value: Any) -> None:
        assert not self._closing.is_set(), "the writer is closed"
        write = Write(kind, trial_id, value, int(time.time() * 1000))
        with self._lock:
            self._incoming.append(write)
            self._kept.add(write)
        self._wake.set()

    # The thread

    def _run(self, tree: Callable[[], RunTree]) -> None:
        pause_s = 1.0
        while self._tree is None and self._failure is None and not self._abandoned.is_set():
            try:
                self._tree = tree()
                self.delayed = None
            except Refused as error:
                self._failure, self.delayed = error, str(error)
            except TrackingError as error:  # it may be locked, or not be there yet
                self.delayed = str(error)
                (self._abandoned if self._closing.is_set() else self._closing).wait(pause_s)
                pause_s = min(LONGEST_RETRY_S, 2 * pause_s)
            except Exception as error:  # noqa: BLE001 - whatever it is, `ready` reports it
                self._failure = TrackingError(f"tracking: MLflow could not be opened: {one_line(error)}")
                self.delayed = str(self._failure)
        if self._tree is not None or self._failure is not None:
            self._opened.set()
        while self._tree is not None:
            try:
                return self._loop(self._tree)
            except Replaced:
                self._deliver_again(self._tree, tree)
            except Exception as error:  # noqa: BLE001 - a fault of ours must not end the deliveries
                self._note(f"tracking: {one_line(error)}; deliveries go on")
                self._abandoned.wait(LONGEST_RETRY_S if not self._closing.is_set() else 1.0)

    def _deliver_again(self, replaced: RunTree, tree: Callable[[], RunTree]) -> None:
        """Go on with the run in the file that took the store's place, and deliver all that the journal holds."""
        self._is_replaced, pause_s = True, 1.0
        while not self._abandoned.is_set():
            replaced.in_place.take()
            try:
                opened = tree()
                with self._lock:
                    self._tree, self._pending, self._incoming = opened, Pending(), deque(self._kept.all())
                    self._is_replaced = False
                self._wake.set()
                return
            except Exception as error:  # noqa: BLE001 - it is tried again, whatever it is
                self.delayed = str(error) if isinstance(error, TrackingError) else one_line(error)
                self._abandoned.wait(pause_s)
                pause_s = min(LONGEST_RETRY_S, 2 * pause_s)

    def _loop(self, tree: RunTree) -> None:
        deliverer = Deliverer(
            tree, self._pending, self._lock, self._kept.set_aside, self._advance, self._abandoned, self._cpus
        )
        with closing(deliverer):
            self._deliver_all(tree, deliverer)

    def _deliver_all(self, tree: RunTree, deliverer: Deliverer) -> None:
        """Deliver, turn by turn, until the writer is closed and nothing waits, or the deliveries are given up."""
        rest_s, retry_s = self._interval_s, 0.0
        while not self._abandoned.is_set():
            if not self._pending:
                self._wake.wait()
            self._closing.wait(max(rest_s, retry_s))  # writes gather; closing cuts it short
            if retry_s and self._closing.is_set():
                self._abandoned.wait(self._interval_s)
            self._wake.clear()
            if tree.in_place.is_replaced:  # the new file may lack the run
                raise Replaced
            self._drain(tree)
            self._kept.sync()  # they are delivered without the disk, too
            is_last = self._closing.is_set()
            turn = deliverer.turn(closing=is_last, settle_s=self._interval_s if retry_s else None)
            self.delayed = deliverer.delayed if turn.failed else None
            if tree.in_place.is_replaced:
                raise Replaced
            if turn.failed:
                retry_s = 1.0 if turn.delivered else min(LONGEST_RETRY_S, max(1.0, 2 * retry_s))
                continue
            rest_s, retry_s = self._rest_s(turn.cpu_s), 0.0
            self._shorten_journal(tree)
            with self._lock:
                if is_last and not self._pending and not self._incoming:
                    return

    def _rest_s(self, cpu_s: float) -> float:
        """Return how long writes gather after a turn that took so much CPU time; not long while runs that have ended
        wait, for a command does not end before them."""
        with self._lock:
            ended = sum(write.kind == "end" for write in self._incoming)
            ended += sum(queue[0].end is not None for queue in self._pending.batches.values())
        if ended >= MOST_ENDED:
            return self._interval_s
        return min(LONGEST_REST_S, max(self._interval_s, cpu_s / self._cpus()))

    def _cpus(self) -> float:
        """Return how many CPUs deliveries may take at present: from `finish` or `close` on all of them."""
        return self._cpu_limit.num_cpus * (1.0 if self._closing.is_set() else self._cpu_limit.share)

    def _drain(self, tree: RunTree) -> None:
        with self._lock:
            for trial_id, child in tree.children.items():
                self._pending.known(trial_id, child.last_epoch, child.last_ms)
            while self._incoming:
                write = self._incoming.popleft()
                try:
                    self._pending.add(write)
                except Exception as error:  # noqa: BLE001 - the next write may be right
                    fault = TrackingError(f"tracking: a write was dropped: {one_line(error)}")
                    self._kept.set_aside(fault, write.trial_id, {write.kind: write.value})

    def _shorten_journal(self, tree: RunTree) -> None:
        """Leave out of the journal what the store has."""
        if not tree.keep():
            return  # the journal has what would be lost with this node's disk
        with self._lock:
            if not self._abandoned.is_set():
                self._kept.shorten([*self._pending.writes(), *self._incoming], lambda: client.sync(tree.uri))

    def _advance(self) -> None:
        with self._lock:
            self._taken += 1

    def _note(self, line: str) -> None:
        if line not in self.faults and len(self.faults) < MAX_FAULTS:
            self.faults.append(line)
