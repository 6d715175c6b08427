"""Stand in for the writer in a run without tracking."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raygpu.records.trial_writer import Kind, TrialWriter


class NullWriter(TrialWriter):
    """Writer for a run without tracking: writes nothing, opens nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.waiting = self.num_refused = 0

    def ready(self, timeout_s: float) -> None:
        """Return None at once: there is no run tree."""
        return None

    def finish(self) -> None:
        """Do nothing: no write waits."""

    def close(self, patience_s: float, say: Callable[[str], None] | None = None) -> int:
        """Return 0: no write waits."""
        return 0

    def _put(self, kind: Kind, trial_id: str | None, value: Any) -> None:
        """Ignore a write."""
