"""Sequences of arrays, by what a Tune trial trains."""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from raygpu.engines.tune.array_config import ArrayConfig
from raygpu.engines.tune.array_sequence import ArraySequence
from raygpu.engines.tune.evolution import Evolution
from raygpu.engines.tune.fused_arrays import FusedArrays
from raygpu.engines.tune.population_actor import PopulationClient
from raygpu.engines.tune.shared_settings import SharedSettings
from raygpu.errors import RaygpuError
from raygpu.records import scratch
from raygpu.records.trial_files import BEFORE, FILES, WORK
from raygpu.search.trials import Trial
from raygpu.storage import Storage
from raygpu.training.array_of_one import ArrayOfOne
from raygpu.training.base import ModelArray
from raygpu.training.callable.function import SAVES_LATE
from raygpu.training.folds import Data
from raygpu.training.start import start

MARGIN = 0.9
"""Share of a split GPU's memory for arrays; the rest is for CUDA contexts and other processes."""


class TrialAlone(ArraySequence):
    """A torch or Keras model alone."""

    def _make(self, trials: list[Trial]) -> ModelArray:
        return ArrayOfOne(start(self.shared.source, self.code, self.splits, trials[0], self._settings()), trials[0])


class OwnProgram(ArraySequence):
    """A function or script, with a folder for its own files: in object storage, a local copy until it is closed."""

    _has_told_late = False
    """Whether this worker has told SAVES_LATE, for all trials of the function."""
    _copy: tuple[Path, Storage] | None = None
    """Local copy of the trial's folder in object storage, and that folder; None without a copy."""

    def _make(self, trials: list[Trial]) -> ModelArray:
        trial = trials[0]
        storage = self.shared.trial_files / trial.trial_id
        folder = storage.path
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="trial-", dir=scratch.home()))
            self._copy = folder, storage
            if storage.is_dir():
                storage.download(folder)
        folder.mkdir(parents=True, exist_ok=True)
        return ArrayOfOne(start(self.shared.source, self.code, None, trial, self._settings(folder)), trial)

    def close(self) -> None:
        """End the program; upload its files to object storage, and delete the local copy."""
        try:
            super().close()
        finally:
            self._deliver()

    def drop(self, trial_ids: Collection[str]) -> None:
        """Take the trial out once it has ended, and deliver its files while there is a result to tell of a fault."""
        super().drop(trial_ids)
        if not OwnProgram._has_told_late and getattr(self.array, "saves_late", False):
            OwnProgram._has_told_late = True
            self.warnings.append(SAVES_LATE)
        if self._copy is not None:
            self.close()

    def _deliver(self) -> None:
        if self._copy is None:
            return
        (folder, storage), self._copy = self._copy, None
        shutil.rmtree(folder / WORK, ignore_errors=True)  # it has links to the source, which an upload would follow
        try:
            if (folder / BEFORE).is_dir():
                (storage / FILES).remove()  # of an earlier start: an upload deletes nothing
            if any(folder.iterdir()):
                storage.upload(folder)
        except RaygpuError as error:
            place = Path(tempfile.mkdtemp(prefix=f"kept-{storage.name}-", dir=scratch.shared_folder()))
            folder.replace(place)  # this process' folder is deleted with it
            self.warnings.append(f"its files lie in {place} on {socket.gethostname()}, since {error}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


class SplitDevice(ArraySequence):
    """Keras models side by side, each on a logical device of its own."""

    def _make(self, trials: list[Trial]) -> ModelArray:
        from raygpu.training.keras.split import KerasSplit

        settings = self.shared.fused
        assert settings is not None
        assert settings.width is not None
        assert self.splits is not None
        gpu_gib = self.part.device_gib and MARGIN * self.part.device_gib * self.part.share.fraction
        return KerasSplit(self.code, self.splits, trials, self._settings(), settings.width, gpu_gib)


def arrays_of(
    config: ArrayConfig, shared: SharedSettings, splits: Data | None, code: Any, trials: Sequence[Trial] = ()
) -> ArraySequence:
    """Return the arrays of a Tune trial, by its config and the kind of the sweep's source.

    trials: those that it trains, which take part in the sweep's population, if there is one.
    """
    arrays = _arrays_of(config, shared, splits, code)
    if (settings := shared.population) is not None:
        population = PopulationClient(settings.actor)
        arrays.evolution = Evolution(population, settings.epochs, settings.changing, settings.folder, trials)
    return arrays


def _arrays_of(config: ArrayConfig, shared: SharedSettings, splits: Data | None, code: Any) -> ArraySequence:
    part = shared.part(config)
    kind = shared.source.kind
    if not config.fused:
        alone = OwnProgram if kind in ("function", "command") else TrialAlone
        return alone(shared, splits, code, part)
    if kind == "keras":
        return SplitDevice(shared, splits, code, part)
    assert shared.fused is not None
    return FusedArrays(shared, splits, code, part, shared.fused)
