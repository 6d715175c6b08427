"""Stand in for the writer in a job of an array: every write waits in the run's journal, for `raygpu deliver`."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raygpu.records.trial_writer import Kind
from raygpu.tracking.journal import Journal
from raygpu.tracking.null_writer import NullWriter
from raygpu.tracking.pending_writes import Write

SYNC_S = 10.0
"""Seconds between two waits for the disk."""


class Spool(NullWriter):
    """Writer that adds every write to the journal, and delivers none. Nothing of MLflow is imported."""

    def __init__(self, path: Path) -> None:
        """path: of the journal. Raises TrackingError if what an earlier start left cannot be read."""
        super().__init__()
        self._journal = Journal(path)
        self.num_spooled = len(self._journal.take_over())
        """Number of writes that wait in the journal."""
        self._left: deque[Write] = deque()
        """Writes that the disk has not taken yet."""
        self._lock = threading.Lock()
        """Lock held while `_left` and the journal change: the sweep and its monitor write."""
        self._synced = time.monotonic()

    def close(self, patience_s: float, say: Callable[[str], None] | None = None) -> int:
        """Wait until the disk has all; return the number of writes that it does not take, which are lost."""
        self._sync()
        return len(self._left)

    def _put(self, kind: Kind, trial_id: str | None, value: Any) -> None:
        self._left.append(Write(kind, trial_id, value, int(time.time() * 1000)))
        self._add()
        if time.monotonic() - self._synced > SYNC_S:
            self._sync()

    def _add(self) -> None:
        """Add to the journal what it does not have, in order, as far as the disk takes it."""
        with self._lock:
            try:
                while self._left:
                    self._journal.add(self._left[0])
                    self._left.popleft()
                    self.num_spooled += 1
            except OSError as error:
                self._note(error)

    def _sync(self) -> None:
        self._synced = time.monotonic()
        self._add()
        try:
            self._journal.sync()
        except OSError as error:
            self._note(error)

    def _note(self, error: OSError) -> None:
        line = f"tracking: {self._journal.path.parent} cannot be written: {error.strerror}"
        if line not in self.faults:
            self.faults.append(line)
