"""The arrays of one Tune trial, one after another: a trial alone, a split device, or fused arrays."""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from raygpu.engines.tune.array_config import ArrayConfig
from raygpu.engines.tune.shared_settings import FusedSettings, SharedSettings
from raygpu.errors import RaygpuError
from raygpu.experiment import Splits
from raygpu.planning.gpu_shares import DevicePlan
from raygpu.search.trials import Trial
from raygpu.storage import Storage
from raygpu.training.array_of_one import ArrayOfOne
from raygpu.training.base import Array, Settings
from raygpu.training.start import start

logger = logging.getLogger(__name__)
MARGIN = 0.9
"""Share of a split GPU's memory for arrays; the rest is for CUDA contexts and other processes."""


class ArraySequence:
    """The array under way, and the trials that wait for memory beside it. This one is a trial alone.

    code: result of the source's `resolve()`; None for a command. part: placement of the array.
    """

    def __init__(self, shared: SharedSettings, splits: Splits | None, code: Any, part: DevicePlan) -> None:
        self.shared = shared
        self.splits = splits
        self.code = code
        self.part = part
        self.array: Array | None = None
        self.waiting: list[Trial] = []
        """Trials to train after those of the array under way."""
        self.lines: list[str] = []
        """Lines for the user, since the caller took the last ones."""
        self.seconds: dict[str, float] = {}
        """Seconds by activity, since the caller took the last ones."""

    def begin(self, trials: list[Trial], checkpoint: Path | None = None) -> None:
        """Make an array of the trials, or of as many as fit in memory; go on from an array's checkpoint."""
        self.array = self._make(trials)
        if checkpoint is not None:
            self.array.load(checkpoint)

    def _make(self, trials: list[Trial]) -> Array:
        return ArrayOfOne(start(self.shared.source, self.code, self.splits, trials[0], self._settings()), trials[0])

    def _settings(self, folder: Path | None = None) -> Settings:
        own = folder or Path(tempfile.gettempdir())
        return Settings(self.shared.epochs, self.part.threads_per_trial, self.shared.precision, own)

    def current(self) -> Array | None:
        """Return the array to train now: the next one if all trials of the last have ended; None at the end."""
        if not self.trials and self.waiting:
            trials, self.waiting = self.waiting, []
            self.close()
            self.begin(trials)
        return self.array if self.trials else None

    @property
    def trials(self) -> Sequence[Trial]:
        """Trials of the array under way."""
        return [] if self.array is None else self.array.trials

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

    def narrow(self) -> bool:
        """Prepare a narrower array after the present one ran out of memory; return False if there is none."""
        return False

    def save(self, folder: Path) -> None:
        """Write a checkpoint of the array under way."""
        assert self.array is not None
        self.array.save(folder)

    def spend(self, **seconds: float) -> None:
        """Add seconds to activities."""
        for activity, more in seconds.items():
            self.seconds[activity] = self.seconds.get(activity, 0.0) + more

    def end(self) -> None:
        """Free all memory, and delete local files."""
        self.close()

    def close(self) -> None:
        """Free the array's memory; the trials that wait stay."""
        array, self.array = self.array, None
        if array is not None:
            array.close()


class OwnProgram(ArraySequence):
    """A function or script, with a folder for its own files: in object storage, a local copy until it is closed."""

    _copy: tuple[Path, Storage] | None = None
    """Local copy of the trial's folder in object storage, and that folder; None without a copy."""

    def _make(self, trials: list[Trial]) -> Array:
        trial = trials[0]
        kept = self.shared.trial_files / trial.trial_id
        folder = kept.path
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="raygpu-trial-"))
            self._copy = folder, kept
            if kept.is_dir():
                kept.download(folder)
        folder.mkdir(parents=True, exist_ok=True)
        return ArrayOfOne(start(self.shared.source, self.code, None, trial, self._settings(folder)), trial)

    def close(self) -> None:
        """End the program; upload its files to object storage, and delete the local copy."""
        super().close()
        if self._copy is None:
            return
        (folder, kept), self._copy = self._copy, None
        try:
            if any(folder.iterdir()):
                kept.upload(folder)
        except RaygpuError:
            logger.exception("the output of trial %s", kept.name)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class SplitDevice(ArraySequence):
    """Keras models side by side, each on a logical device of its own."""

    def _make(self, trials: list[Trial]) -> Array:
        from raygpu.training.keras.split import KerasSplit

        settings = self.shared.fused
        assert settings is not None
        assert settings.width is not None
        assert self.splits is not None
        gpu_gib = self.part.device_gib and MARGIN * self.part.device_gib * self.part.share.fraction
        return KerasSplit(self.code, self.splits, trials, self._settings(), settings.width, gpu_gib)


class FusedArrays(ArraySequence):
    """Torch models as one program, in as many arrays as memory asks for; half as wide after an out-of-memory."""

    array: Any

    def __init__(
        self, shared: SharedSettings, splits: Splits | None, code: Any, part: DevicePlan, settings: FusedSettings
    ) -> None:
        super().__init__(shared, splits, code, part)
        self.settings = settings
        self.width = settings.width
        self._narrowed: list[Trial] = []
        """Trials of an array that ran out of memory, until it goes on at half its width."""
        self._last = Path(tempfile.mkdtemp(prefix="raygpu-last-"))
        """Copy of the array's last checkpoint, from which it goes on if it runs out of memory; empty without one."""

    def begin(self, trials: list[Trial], checkpoint: Path | None = None) -> None:
        """Make an array of as many trials as fit in memory, and choose its width; go on from an array's checkpoint."""
        began = time.monotonic()
        from raygpu.training.fused.model_array import TorchArray
        from raygpu.training.fused.width import capacity, settle

        assert self.splits is not None
        imported = time.monotonic()
        fraction, host_gib = self.part.share.fraction, self.settings.host_memory_gib[self.part.device]
        limit, count = capacity(self.code, trials[0], fraction, host_gib)
        now, later = trials[:count], trials[count:]
        if later:
            self.lines.append(f"{len(now)} of {len(trials)} trials fit in memory at once; the others follow")
        self.waiting = [*later, *self.waiting]
        array = TorchArray(self.code, self.splits, now, self._settings(), width=self.width)
        if checkpoint is not None:
            array.load(checkpoint)
        made = time.monotonic()
        self.lines += settle(array, limit, self.settings.mean_epochs)
        self.array = array
        self.spend(imports=imported - began, members=made - imported, probe=time.monotonic() - made)

    def current(self) -> Array | None:
        """Return the array to train now: after an out-of-memory, the same trials from its last checkpoint."""
        if self._narrowed:
            trials, self._narrowed = self._narrowed, []
            self.begin(trials, self._last if any(self._last.iterdir()) else None)
        elif not self.trials:
            self._forget_last()
        return super().current()

    @property
    def has_ended(self) -> bool:
        """Whether no trial is left to be trained."""
        return super().has_ended and not self._narrowed

    def drop(self, trial_ids: Collection[str]) -> None:
        """Take trials out that have ended, and choose the width again."""
        from raygpu.training.fused.width import resettle

        super().drop(trial_ids)
        self.lines += resettle(self.array)

    def audit(self, trial_id: str) -> None:
        """Raise NotAsAlone if a trial at its last epoch differs from the same trial trained alone."""
        self.array.audit(trial_id)

    def narrow(self) -> bool:
        """Prepare an array of half the width after an out-of-memory; return False if its width is 1."""
        width = max((tile.width for tile in self.array.tiles), default=1) if self.array is not None else 1
        if width < 2:
            return False
        self.width, self._narrowed = width // 2, self.array.trials
        self.close()
        where = "its last checkpoint" if any(self._last.iterdir()) else "the beginning"
        self.lines.append(f"out of memory at width {width}; goes on at {self.width} from {where}")
        return True

    def save(self, folder: Path) -> None:
        """Write a checkpoint of the array under way, and keep a copy of it."""
        super().save(folder)
        self._forget_last()
        shutil.copytree(folder, self._last, dirs_exist_ok=True)

    def end(self) -> None:
        """Free all memory, and delete local files."""
        super().end()
        shutil.rmtree(self._last, ignore_errors=True)

    def _forget_last(self) -> None:
        shutil.rmtree(self._last, ignore_errors=True)
        self._last.mkdir()


def arrays_of(config: ArrayConfig, shared: SharedSettings, splits: Splits | None, code: Any) -> ArraySequence:
    """Return the arrays of a Tune trial, by its config and the kind of the sweep's source."""
    part = shared.part(config)
    kind = shared.source.kind
    if not config.fused:
        alone = OwnProgram if kind in ("function", "command") else ArraySequence
        return alone(shared, splits, code, part)
    if kind == "keras":
        return SplitDevice(shared, splits, code, part)
    assert shared.fused is not None
    return FusedArrays(shared, splits, code, part, shared.fused)
