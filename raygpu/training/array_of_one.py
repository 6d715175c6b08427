"""A trial that is trained alone, behind the interface of an array."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from raygpu.search.trials import EpochResult, Trial
from raygpu.training.hyperparameters import OptimizerSettings


class ArrayOfOne:
    """One training with the interface of an array."""

    def __init__(self, solo: Any, trial: Trial) -> None:
        """Take a `Training`; one that belongs to a population has `optimizer_settings`."""
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
        return self.solo.has_saved(epoch)

    @property
    def saves_late(self) -> bool:
        """Whether a function's states count as those of the epochs after them."""
        return getattr(self.solo, "saves_late", False)

    def save_member(self, trial_id: str, folder: Path) -> None:
        """Save the trial's own checkpoint."""
        self.solo.save(folder)

    def adopt(self, trial_id: str, settings: OptimizerSettings) -> None:
        """Go on with other numbers of the optimizer."""
        self.solo.optimizer_settings = settings

    def copy_members(self, donors: Mapping[str, str]) -> None:
        """Fail: there is no other member."""
        assert not donors, "a trial alone has no other member to copy"

    def load_member(self, trial_id: str, folder: Path) -> None:
        """Take over another trial's checkpoint of this epoch."""
        epoch = self.solo.epoch
        self.solo.load(folder)
        if self.solo.epoch != epoch:
            raise ValueError(f"a checkpoint of epoch {self.solo.epoch} is no state of a trial at epoch {epoch}")

    def save(self, folder: Path) -> None:
        """Save the trial's own checkpoint."""
        self.solo.save(folder)

    def load(self, folder: Path) -> None:
        """Go on from the checkpoint in a folder."""
        self.solo.load(folder)

    @property
    def notes(self) -> Sequence[str]:
        """Lines for the user: see `Training`."""
        return self.solo.notes

    def close(self) -> None:
        """Free the training's memory."""
        self.solo.close()
