"""Keras trainings in one process, each on a logical device of its own, behind the interface of an array."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from raygpu.experiment import Experiment
from raygpu.search.trials import EpochResult, Trial
from raygpu.training.base import Settings
from raygpu.training.folds import Data
from raygpu.training.keras.kept_layers import require_no_generator
from raygpu.training.keras.logical_devices import make_logical_devices
from raygpu.training.keras.random_states import require_apart
from raygpu.training.keras.solo import KerasSolo
from raygpu.training.own_copy import own_copy

Place = Callable[[], Any]
T = TypeVar("T")


class KerasSplit:
    """Trains all of its trials at once, each in a thread and on a logical device.

    width: number of logical devices; TensorFlow keeps those of its start, so all arrays of a process have the same
    number. memory_gib: of the whole GPU, to be split evenly. More trials than devices share them.
    """

    def __init__(
        self,
        experiment: Experiment,
        splits: Data,
        trials: Sequence[Trial],
        settings: Settings,
        width: int,
        memory_gib: float | None = None,
    ) -> None:
        require_no_generator(experiment)
        places = make_logical_devices(width, memory_gib and memory_gib / width)
        self._members: dict[str, tuple[KerasSolo, Place]] = {}
        for i, trial in enumerate(trials):
            place = places[i % len(places)]
            with place():
                self._members[trial.trial_id] = KerasSolo(own_copy(experiment), splits, trial, settings), place
        self.trials = list(trials)
        self._pool = ThreadPoolExecutor(len(trials))

    @property
    def epoch(self) -> int:
        """Last epoch that has ended; 0 without trials."""
        return max((self._members[trial.trial_id][0].epoch for trial in self.trials), default=0)

    def run_epoch(self) -> dict[str, EpochResult] | None:
        """Train and evaluate the next epoch of every trial; return results by trial id, None after the last one."""

        self._on_devices(KerasSolo.trace)
        require_apart(solo.random_states for solo, _ in self._members.values())
        results = self._on_devices(KerasSolo.run_epoch)
        results_by_trial = {trial.trial_id: r for trial, r in zip(self.trials, results, strict=True) if r is not None}
        return results_by_trial or None

    def _on_devices(self, function: Callable[[KerasSolo], T]) -> list[T]:
        """Return a function's result for each trial's training, called in a thread on the trial's device."""

        def call(trial: Trial) -> T:
            """Call the function for one trial."""
            solo, place = self._members[trial.trial_id]
            with place():
                return function(solo)

        return list(self._pool.map(call, self.trials))

    def drop(self, trial_ids: Collection[str]) -> None:
        """Take trials out."""
        self.trials = [trial for trial in self.trials if trial.trial_id not in trial_ids]

    def has_saved(self, epoch: int) -> bool:
        """Return True: every epoch can be saved."""
        return True

    def save_member(self, trial_id: str, folder: Path) -> None:
        """Save one trial in the format of `KerasSolo`."""
        self._members[trial_id][0].save(folder)

    def save(self, folder: Path) -> None:
        """Write a folder for each remaining trial."""
        for trial in self.trials:
            (folder / trial.trial_id).mkdir(parents=True, exist_ok=True)
            self.save_member(trial.trial_id, folder / trial.trial_id)

    def load(self, folder: Path) -> None:
        """Go on from a folder that `save` wrote; trials missing there are dropped."""
        self.drop({trial.trial_id for trial in self.trials if not (folder / trial.trial_id).is_dir()})
        for trial in self.trials:
            self._members[trial.trial_id][0].load(folder / trial.trial_id)

    def close(self) -> None:
        """Free memory and graphs."""
        self._pool.shutdown()
        for solo, _ in self._members.values():
            solo.close()
        self._members, self.trials = {}, []
