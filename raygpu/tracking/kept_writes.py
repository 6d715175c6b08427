"""The writer's files: those of the writes that wait, and of the values that MLflow refused.

What a full disk does not take stays in memory, and is tried again with the next write: it is still delivered if this
process lives.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from raygpu.errors import TrackingError, one_line
from raygpu.records.whole_files import append_lines
from raygpu.tracking.journal import Journal, load
from raygpu.tracking.pending_writes import Write

REFUSED = "refused.jsonl"
"""File, beside the journal, of the values that MLflow refused."""
MOST_LINES = 1000
"""Journal lines, beyond four for each waiting write, from which on the journal is shortened."""


class KeptWrites:
    """Waiting writes in the journal, and refused values in a file beside it; a disk that takes none is noted once."""

    def __init__(self, path: Path, note: Callable[[str], None]) -> None:
        """Read what an earlier writer has left. path: of the journal. note: takes a line on a fault of the disk.

        Raises TrackingError if the journal cannot be read.
        """
        self.lock = threading.RLock()
        """Lock held while writes change, here or in memory, never during a call to MLflow."""
        self._journal, self._note = Journal(path), note
        self.earlier = self._journal.take_over()
        """Writes that an earlier writer has left, in order."""
        self.num_refused = self._journal.damaged
        """Number of values that MLflow refused, and of damaged writes: set aside, and never delivered."""
        if damaged := self._journal.damaged:
            note(f"{damaged:,} waiting writes were damaged; they are set aside in {self._journal.damaged_path}")
        self._missing = deque[Write]()
        """Writes that the journal lacks, because the disk did not take them; they follow its lines, in order."""
        self._aside: list[str] = []
        """Lines for the file of refused values that the disk has not taken yet."""

    @property
    def num_lines(self) -> int:
        """Number of writes in the journal."""
        return self._journal.num_lines

    def add(self, write: Write) -> None:
        """Add a write to the journal, after those that it lacks."""
        with self.lock:
            self._missing.append(write)
            self._add_missing()

    def _add_missing(self) -> None:
        while self._missing:
            try:
                self._journal.add(self._missing[0])
            except OSError as error:
                return self._note_disk(error)
            except Exception as error:  # noqa: BLE001 - the next write may be right
                self._note(f"tracking: a write is not in the journal: {one_line(error)}")
            self._missing.popleft()

    def set_aside(self, fault: TrackingError, trial_id: str | None, values: Mapping[str, Any]) -> None:
        """Keep what MLflow refuses, with the reason."""
        line = json.dumps({"fault": str(fault), "trial_id": trial_id, "values": values}, default=str)
        with self.lock:
            self._note(f"MLflow refused: {fault}")
            self.num_refused += 1
            self._aside.append(f"{line}\n")
            self._add_aside()

    def _add_aside(self) -> None:
        """Write the refused values to their file, and wait until the disk has them."""
        if not self._aside:
            return
        try:
            append_lines(self._journal.path.with_name(REFUSED), "".join(self._aside), sync=True)
            self._aside.clear()
        except OSError as error:
            self._note_disk(error)

    def sync(self) -> None:
        """Wait until the disk has all that was added; other threads may add meanwhile."""
        with self.lock:
            self._add_aside()
            self._add_missing()
        try:
            self._journal.sync()
        except OSError as error:
            self._note_disk(error)

    def all(self) -> list[Write]:
        """Return all writes since the journal was last shortened, delivered ones too, in order. Raises OSError."""
        with self.lock:
            kept = load(self._journal.path)[0] if self._journal.path.is_file() else []
            return [*kept, *self._missing]

    def shorten(self, waiting: Sequence[Write], sync_store: Callable[[], None]) -> None:
        """Leave in the journal what waits, all others being delivered, once they are most of it or nothing waits.

        sync_store: waits until the disk has what was delivered. Raises nothing if a disk takes no more.
        """
        with self.lock:
            if waiting and self.num_lines + len(self._missing) < MOST_LINES + 4 * len(waiting):
                return
            try:
                sync_store()
                self._missing = deque(waiting)
                if waiting:
                    self._journal.rewrite(waiting)
                else:
                    self._journal.clear()
                self._missing.clear()
            except OSError as error:
                self._note_disk(error)

    def close(self, waiting: Sequence[Write], *, delivered: bool) -> None:
        """Write the last changes. delivered: whether the store has all but the waiting writes, for good; without it,
        the journal keeps those that were delivered, too."""
        with self.lock:
            self._add_aside()
            try:
                if delivered:
                    self._journal.close(waiting)
                else:
                    self.sync()
            except OSError as error:
                self._note_disk(error)

    def _note_disk(self, error: OSError) -> None:
        self._note(f"tracking: {self._journal.path.parent} cannot be written: {error.strerror}")
