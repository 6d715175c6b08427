"""Fused arrays of torch models: as many trials as fit in memory, then the others."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raygpu.engines.cluster import orphan_processes
from raygpu.engines.tune.array_sequence import ArraySequence
from raygpu.engines.tune.shared_settings import ArraySettings, SharedSettings
from raygpu.planning.gpu_shares import DevicePlan
from raygpu.records import scratch
from raygpu.records.array_store import ArrayStore
from raygpu.records.run_directory import MEMBERS, PROGRESS
from raygpu.search.trials import Trial
from raygpu.training.base import ModelArray
from raygpu.training.folds import Data

if TYPE_CHECKING:  # torch takes seconds to import
    from raygpu.training.fused.array_cache import ArrayCache


class FusedArrays(ArraySequence):
    """Torch models as one program, in as many arrays as memory asks for; half as wide after an out-of-memory."""

    array: Any

    def __init__(
        self, shared: SharedSettings, splits: Data | None, code: Any, part: DevicePlan, settings: ArraySettings
    ) -> None:
        super().__init__(shared, splits, code, part)
        self.settings = settings
        self.width = settings.width
        self._kept: ArrayCache | None = None
        self._memory_limit: int | None = None
        """Bytes that the array may take; None if unknown."""
        self._narrowed: list[Trial] = []
        """Trials of an array that ran out of memory, until it goes on at half its width."""
        self._last = Path(tempfile.mkdtemp(prefix="last-", dir=scratch.home()))
        """Copy of the array's last checkpoint, from which it goes on if it runs out of memory; empty without one."""

    def begin(self, trials: list[Trial], checkpoint: Path | None = None) -> None:
        """Make an array of as many trials as fit in memory, and choose its width; go on from an array's checkpoint."""
        from raygpu.training.fused.width import settle

        if checkpoint is not None and checkpoint != self._last:
            self._keep(checkpoint, trials)  # at once: to load it may run out of memory, too
        super().begin(trials, checkpoint)
        began = time.monotonic()
        self._kept = self._array_cache()
        self.lines += settle(self.array, self._memory_limit, self.settings.mean_epochs, self._kept)
        self.spend(probe=time.monotonic() - began)

    def _array_cache(self) -> ArrayCache:
        """Return what earlier sweeps have kept of arrays like the one under way."""
        from raygpu.training.fused.array_cache import ArrayCache

        store = ArrayStore.at(self.settings.profiles)
        # A compilation outlives the sweep, whose own processes are known by their mark and ended.
        environment = {name: value for name, value in os.environ.items() if name != orphan_processes.VARIABLE}
        return ArrayCache(store, self.array, self.shared.source, environment)

    def _make(self, trials: list[Trial]) -> ModelArray:
        began = time.monotonic()
        from raygpu.training.fused.model_array import TorchArray
        from raygpu.training.fused.width import capacity

        assert self.splits is not None
        imported = time.monotonic()
        fraction, host_gib = self.part.share.fraction, self.settings.host_memory_gib[self.part.device]
        self._memory_limit, count = capacity(self.code, trials[0], fraction, host_gib)
        if count < len(trials):
            self.lines.append(f"{count} of {len(trials)} trials fit in memory at once; the others follow")
            if self.evolution is not None:
                self.lines[-1] += ", and take over from those before them: the result depends on the memory"
        self.waiting = [*trials[count:], *self.waiting]
        array = TorchArray(self.code, self.splits, trials[:count], self._settings(), width=self.width)
        self.spend(imports=imported - began, members=time.monotonic() - imported)
        return array

    def current(self) -> ModelArray | None:
        """Return the array to train now: after an out-of-memory, the same trials from its last checkpoint."""
        if self._narrowed:
            trials, self._narrowed = self._narrowed, []
            self.begin(trials, self.last_checkpoint)
        elif not self.trials:
            self._forget_last()
        elif self._kept is not None and self._kept.pending:
            from raygpu.training.fused.width import take_compiled

            self.lines += take_compiled(self.array, self._kept)
        return super().current()

    @property
    def has_ended(self) -> bool:
        """Whether no trial is left to be trained."""
        return super().has_ended and not self._narrowed

    def epochs(self) -> dict[str, int]:
        """Return the last epoch that has ended of each trial that is left; make a narrower array that is due, with
        which that is known."""
        if self._narrowed:
            self.next_array()
        return super().epochs()

    @property
    def last_checkpoint(self) -> Path | None:
        """Checkpoint from which a narrower array goes on; None for the beginning."""
        return self._last if any(self._last.iterdir()) else None

    def drop(self, trial_ids: Collection[str]) -> None:
        """Take trials out that have ended, and choose the width again."""
        from raygpu.training.fused.width import resettle

        super().drop(trial_ids)
        self.lines += resettle(self.array, self._kept)

    def audit(self, trial_id: str) -> None:
        """Raise NotAsAlone if a trial at its last epoch differs from the same trial trained alone."""
        self.array.audit(trial_id)

    def narrow(self, ended: Collection[str]) -> bool:
        """Prepare an array of half the width after an out-of-memory; return False if its width is 1."""
        width = max((tile.width for tile in self.array.tiles), default=1) if self.array is not None else 1
        if width < 2:
            return False
        self.width = width // 2
        self._narrowed = [trial for trial in self.array.trials if trial.trial_id not in ended]
        self.close()
        where = "its last checkpoint" if self.last_checkpoint else "the beginning"
        self.warnings.append(f"out of memory with {width} trials at once; goes on with {self.width} from {where}")
        return True

    @property
    def going_on(self) -> Sequence[Trial]:
        """Trials that would go on from a checkpoint of now: after an out-of-memory, those of its last checkpoint."""
        return self._narrowed if self._narrowed and self.last_checkpoint else self.trials

    def save(self, folder: Path) -> None:
        """Write a checkpoint of the array under way beside its members' progress, and keep a copy of both; until a
        narrower array is made, write the last checkpoint again."""
        if self._narrowed:
            shutil.copytree(self._last, folder, ignore=_members_progress, dirs_exist_ok=True)
            return
        super().save(folder)
        self._keep(folder, self.trials)

    def end(self) -> None:
        """Free all memory, and delete local files."""
        try:
            super().end()
        finally:
            shutil.rmtree(self._last, ignore_errors=True)

    def _keep(self, checkpoint: Path, trials: Sequence[Trial]) -> None:
        """Keep a copy of a checkpoint. trials: those that go on from it."""
        self._forget_last()
        going_on = {trial.trial_id for trial in trials}

        def not_read(folder: str, names: list[str]) -> list[str]:
            """Name the parameters of trials that have ended."""
            return [name for name in names if Path(folder) == checkpoint / MEMBERS and name not in going_on]

        shutil.copytree(checkpoint, self._last, dirs_exist_ok=True, ignore=not_read)

    def _forget_last(self) -> None:
        shutil.rmtree(self._last, ignore_errors=True)
        self._last.mkdir()


def _members_progress(folder: str, names: list[str]) -> set[str]:
    """Name what a checkpoint has of its members' progress."""
    return {MEMBERS, PROGRESS} & {*names}
