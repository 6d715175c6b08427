"""A trial that cannot be fused, behind the interface of an array."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from raygpu.search.trials import EpochResult, Trial
from raygpu.training.base import Training


class ArrayOfOne:
    """One training, used as a `TorchArray` is."""

    def __init__(self, solo: Training, trial: Trial) -> None:
        self.solo = solo
        self.trials = [trial]

    @property
    def epoch(self) -> int:
        return self.solo.epoch

    def run_epoch(self) -> dict[str, EpochResult] | None:
        result = self.solo.run_epoch() if self.trials else None
        return None if result is None else {self.trials[0].trial_id: result}

    def drop(self, trial_ids: Collection[str]) -> None:
        self.trials = [trial for trial in self.trials if trial.trial_id not in trial_ids]

    def save_member(self, trial_id: str, folder: Path) -> None:
        self.solo.save(folder)

    def save(self, folder: Path) -> None:
        self.solo.save(folder)

    def load(self, folder: Path) -> None:
        self.solo.load(folder)

    def close(self) -> None:
        self.solo.close()
