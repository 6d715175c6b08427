"""What every kind of training offers the engines: an epoch at a time, saved and loaded as a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from raygpu.config import Precision
    from raygpu.trials import EpochResult


@dataclass(frozen=True, slots=True)
class Settings:
    """What a training needs to know of its surroundings."""

    epochs: int | None
    """The last epoch; None lets a function or script end by itself."""
    threads: int
    """CPU threads that the training may keep busy."""
    precision: Precision
    folder: Path
    """Exists and is this trial's own: a script's output and scratch files go here."""


class Training(Protocol):
    """One training under way."""

    def run_epoch(self) -> EpochResult | None:
        """Train and evaluate one epoch, or wait for the next report; None when the training has ended."""

    def save(self, folder: Path) -> None:
        """Write all that is needed to go on after the last epoch yielded."""

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote. Called before the first `run_epoch`."""

    def close(self) -> None:
        """End early if need be, and free memory, threads and processes. Called once, always."""
