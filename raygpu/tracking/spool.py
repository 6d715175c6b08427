"""Stand in for the writer in a job of an array: every write waits in the run's journal, for `raygpu deliver`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import EpochResult, Trial
from raygpu.tracking.journal import Journal
from raygpu.tracking.null_writer import NullWriter
from raygpu.tracking.pending_writes import Kind, Write

SYNC_S = 10.0
"""Seconds between two waits for the disk."""


class Spool(NullWriter):
    """Writer that adds every write to the journal, and delivers none. Nothing of MLflow is imported."""

    def __init__(self, path: Path) -> None:
        """path: of the journal. Raises TrackingError if what an earlier start left cannot be read."""
        super().__init__()
        self._journal = Journal(path)
        self.num_spooled = len(self._journal.take_over())
        """Number of writes that wait."""
        self._synced = time.monotonic()

    def begin(self, trial: Trial) -> None:
        """Note a trial's begin."""
        self._put("begin", trial.trial_id, trial)

    def restart(self, trial: Trial) -> None:
        """Note that a trial runs again from its start."""
        self._put("restart", trial.trial_id, trial)

    def place(self, trial_id: str, gpu_index: int | None, gpu_share: float | None) -> None:
        """Note a trial's GPU and its share of it."""
        tags = {"raygpu.gpu_index": gpu_index, "raygpu.gpu_share": gpu_share}
        self._put("place", trial_id, {name: value for name, value in tags.items() if value is not None})

    def tag(self, trial_id: str, tags: Mapping[str, Any]) -> None:
        """Note tags of a trial."""
        self._put("place", trial_id, dict(tags))

    def epochs(self, trial_id: str, results: Sequence[EpochResult]) -> None:
        """Note the metrics of epochs."""
        self._put("epochs", trial_id, list(results))

    def metrics(self, trial_id: str, metrics: Mapping[str, float]) -> None:
        """Note metrics without an epoch."""
        self._put("metrics", trial_id, dict(metrics))

    def end(self, record: TrialRecord) -> None:
        """Note a trial's end."""
        self._put("end", record.trial.trial_id, replace(record, scores=replace(record.scores)))

    def run_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Note metrics of the run itself."""
        self._put("gpu", None, (int(step), dict(metrics)))

    def close(self, patience_s: float, say: Callable[[str], None] | None = None) -> int:
        """Wait until the disk has all; return 0, since nothing is to be delivered by this process."""
        self._sync()
        return 0

    def _put(self, kind: Kind, trial_id: str | None, value: Any) -> None:
        try:
            self._journal.add(Write(kind, trial_id, value, int(time.time() * 1000)))
            self.num_spooled += 1
        except OSError as error:
            self._note(error)
        if time.monotonic() - self._synced > SYNC_S:
            self._sync()

    def _sync(self) -> None:
        self._synced = time.monotonic()
        try:
            self._journal.sync()
        except OSError as error:
            self._note(error)

    def _note(self, error: OSError) -> None:
        line = f"tracking: {self._journal.path.parent} cannot be written: {error.strerror}"
        if line not in self.faults:
            self.faults.append(line)
