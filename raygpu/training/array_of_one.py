"""A trial that is trained alone, behind the interface of an array."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from raygpu.search.trials import EpochResult, Trial
from raygpu.training.base import Training


class ArrayOfOne:
    """One training with the interface of an array."""

    def __init__(self, solo: Training, trial: Trial) -> None:
        self.solo = solo
        self.trials = [trial]

    @property
    def epoch(self) -> int:
        """Last epoch that has ended."""
        return self.solo.epoch

    def run_epoch(self) -> dict[str, EpochResult] | None:
        """Train and evaluate the next epoch; return its result by trial id, None after the last one or a `drop`."""
        result = self.solo.run_epoch() if self.trials else None
        return None if result is None else {self.trials[0].trial_id: result}

    def drop(self, trial_ids: Collection[str]) -> None:
        """Take the trial out, if it is among these."""
        self.trials = [trial for trial in self.trials if trial.trial_id not in trial_ids]

    def has_saved(self, epoch: int) -> bool:
        """Return whether the training saves this epoch: a function's or a script's own checkpoint may be older."""
        return bool(getattr(self.solo, "has_saved", lambda epoch: True)(epoch))

    def save_member(self, trial_id: str, folder: Path) -> None:
        """Save the trial's own checkpoint."""
        self.solo.save(folder)

    def save(self, folder: Path) -> None:
        """Save the trial's own checkpoint."""
        self.solo.save(folder)

    def load(self, folder: Path) -> None:
        """Go on from the checkpoint in a folder."""
        self.solo.load(folder)

    def close(self) -> None:
        """Free the training's memory."""
        self.solo.close()
