"""The arrays of one Tune trial, one after another."""

from __future__ import annotations

import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from raygpu.engines.tune.array_checkpoint import reading
from raygpu.engines.tune.evolution import Evolution
from raygpu.engines.tune.shared_settings import SharedSettings
from raygpu.planning.gpu_shares import DevicePlan
from raygpu.search.trials import EpochResult, Trial
from raygpu.training.base import ChangingArray, ModelArray, Settings
from raygpu.training.folds import Data


class ArraySequence(ABC):
    """The array under way, and the trials that wait for memory beside it.

    code: result of the source's `resolve()`; None for a command. part: placement of the array.
    """

    def __init__(self, shared: SharedSettings, splits: Data | None, code: Any, part: DevicePlan) -> None:
        self.shared = shared
        self.splits = splits
        self.code = code
        self.part = part
        self.array: ModelArray | None = None
        self.waiting: list[Trial] = []
        """Trials to train after those of the array under way."""
        self.lines: list[str] = []
        """Lines for the user, since the caller took the last ones."""
        self.warnings: list[str] = []
        """Lines on faults that were mended, since the caller took the last ones."""
        self.seconds: dict[str, float] = {}
        """Seconds by activity, since the caller took the last ones."""
        self.evolution: Evolution | None = None
        """The trials in their sweep's population; None without one."""
        self._num_noted = 0
        """Number of the present array's notes that are among the warnings."""

    def begin(self, trials: list[Trial], checkpoint: Path | None = None) -> None:
        """Make an array of the trials, or of as many as fit in memory; go on from an array's checkpoint."""
        self.array, self._num_noted = self._make(trials), 0
        if self.evolution is not None:  # first: the settings at hand decide on the optimizer's buffers that are read
            self.evolution.restore(checkpoint, cast(ChangingArray, self.array))
        if checkpoint is not None:
            with reading():
                self.array.load(checkpoint)
            self._take_notes()

    @abstractmethod
    def _make(self, trials: list[Trial]) -> ModelArray:
        """Make an array of these trials."""

    def _settings(self, folder: Path | None = None) -> Settings:
        trial_folder = folder or Path(tempfile.gettempdir())
        shared, threads = self.shared, self.part.threads_per_trial
        changing = shared.population.changing if shared.population is not None else ()
        return Settings(shared.epochs, threads, shared.precision, trial_folder, folds=shared.folds, changing=changing)

    def current(self) -> ModelArray | None:
        """Return the array to train now: the next one if all trials of the last have ended; None at the end."""
        if not self.trials and self.waiting:
            trials, self.waiting = self.waiting, []
            self.close()
            self.begin(trials)
        return self.array if self.trials else None

    def next_array(self) -> ModelArray | None:
        """Return the array to train now, as `current` does, and count the time of its making that `current` has not."""
        began, counted_s = time.monotonic(), sum(self.seconds.values())
        array = self.current()
        self.spend(setup=time.monotonic() - began - (sum(self.seconds.values()) - counted_s))
        return array

    @property
    def trials(self) -> Sequence[Trial]:
        """Trials of the array under way."""
        return [] if self.array is None else self.array.trials

    @property
    def going_on(self) -> Sequence[Trial]:
        """Trials that would go on from a checkpoint of now."""
        return self.trials

    def epochs(self) -> dict[str, int]:
        """Return the last epoch that has ended of each trial that is left; 0 of those that wait."""
        last = self.array.epoch if self.array is not None else 0
        return {trial.trial_id: 0 for trial in self.waiting} | {trial.trial_id: last for trial in self.trials}

    @property
    def has_ended(self) -> bool:
        """Whether no trial is left to be trained."""
        return not (self.trials or self.waiting)

    def drop(self, trial_ids: Collection[str]) -> None:
        """Take trials out that have ended."""
        assert self.array is not None
        self.array.drop(trial_ids)

    def audit(self, trial_id: str) -> None:
        """Raise NotAsAlone if a trial at its last epoch differs from the same trial trained alone."""
        return

    def narrow(self, ended: Collection[str]) -> bool:
        """Prepare a narrower array after the present one ran out of memory; return False if there is none.

        ended: names of trials that have ended, also where the present array could not drop them.
        """
        return False

    @property
    def last_checkpoint(self) -> Path | None:
        """Checkpoint from which a narrower array goes on; None for the beginning."""
        return None

    def save(self, folder: Path) -> None:
        """Write a checkpoint of the array under way beside its members' progress."""
        assert self.array is not None
        self.array.save(folder)
        if self.evolution is not None:
            self.evolution.save(folder)

    def take_told(self) -> dict[str, Any]:
        """Return the lines, the warnings and the seconds by activity since the last call."""
        self._take_notes()
        update = {"lines": self.lines, "warnings": self.warnings, "seconds": self.seconds}
        self.lines, self.warnings, self.seconds = [], [], {}
        return update

    def _take_notes(self) -> None:
        """Add the notes of the array under way that are new to the warnings."""
        notes = getattr(self.array, "notes", ())
        self.warnings += notes[self._num_noted :]
        self._num_noted = len(notes)

    def spend(self, **seconds: float) -> None:
        """Add seconds to activities."""
        for activity, more in seconds.items():
            self.seconds[activity] = self.seconds.get(activity, 0.0) + more

    def spend_epoch(self, results: Mapping[str, EpochResult] | None, elapsed_s: float) -> None:
        """Add the seconds of an epoch; all of them are the program's own where raygpu does not run the loop.

        results: of all members, which share the time; None if the program ended.
        """
        timed = [result for result in (results or {}).values() if result.train_s is not None]
        if not timed:
            self.spend(program=elapsed_s)
            return
        train_s = sum(result.train_s or 0.0 for result in timed) / len(timed)
        evaluation_s = sum(result.validate_s or 0.0 for result in timed) / len(timed)
        rest_s = max(0.0, elapsed_s - train_s - evaluation_s)
        waits = [result.waited_s for result in timed if result.waited_s is not None]
        waited_s = sum(waits) / len(timed)
        self.spend(
            train=train_s - waited_s, evaluation=evaluation_s, other=rest_s, **({"data": waited_s} if waits else {})
        )

    def end(self) -> None:
        """Free all memory, and delete local files."""
        self.close()

    def close(self) -> None:
        """Free the array's memory; the trials that wait stay."""
        self._take_notes()
        array, self.array = self.array, None
        if array is not None:
            array.close()
