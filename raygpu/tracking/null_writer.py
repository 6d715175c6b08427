"""Stand in for the writer in a run without tracking."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import EpochResult, Trial


class NullWriter:
    """Writer for a run without tracking: writes nothing, opens nothing."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.delayed: str | None = None
        self.waiting = 0

    def ready(self, timeout_s: float) -> None:
        """Return None at once: there is no run tree."""
        return None

    def begin(self, trial: Trial) -> None:
        """Ignore a trial's begin."""

    def restart(self, trial: Trial) -> None:
        """Ignore a trial's restart."""

    def place(self, trial_id: str, gpu_index: int | None, gpu_share: float | None) -> None:
        """Ignore a trial's GPU."""

    def tag(self, trial_id: str, tags: Mapping[str, Any]) -> None:
        """Ignore tags."""

    def epochs(self, trial_id: str, results: Sequence[EpochResult]) -> None:
        """Ignore the metrics of epochs."""

    def metrics(self, trial_id: str, metrics: Mapping[str, float]) -> None:
        """Ignore metrics without an epoch."""

    def end(self, record: TrialRecord) -> None:
        """Ignore a trial's end."""

    def run_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Ignore the run's metrics."""

    def finish(self) -> None:
        """Do nothing: no write waits."""

    def close(self, patience_s: float, say: Callable[[str], None] | None = None) -> int:
        """Return 0: no write waits."""
        return 0
