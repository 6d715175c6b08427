"""The folders that a worker writes the checkpoints of its Tune trial to.

Tune counts checkpoints in the worker and in the driver, and copies into whatever folder has the next number. A copy
that failed, and a worker that was lost before Tune knew of its last checkpoint, leave a folder, and two counts that
differ: a later checkpoint would replace the one that Tune deletes for it, or take over files of another one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from raygpu.devices import disk
from raygpu.engines.tune.tune_private_api import next_checkpoint, number_checkpoints_after, trial_folder
from raygpu.records.run_directory import TUNE_CHECKPOINT
from raygpu.storage import Storage, StorageError


class CheckpointFolders:
    """The checkpoint folders of a worker's present Tune trial: each checkpoint gets a new one.

    beside: any folder of the run's storage. context: Tune's storage context of the trial.
    """

    def __init__(self, beside: Storage, context: Any) -> None:
        self.context = context
        self.folder = beside.beside(trial_folder(context))
        self._known: str | None = None
        """Name of the folder of the checkpoint that Tune restored last; None without one."""
        self._is_first = True
        """Whether this worker has written none of the trial's checkpoints yet."""

    def restores(self, checkpoint: Any) -> None:
        """Note the checkpoint that Tune restores, so that it is kept."""
        self._known = PurePosixPath(checkpoint.path).name

    def save(self, save: Callable[[], Any]) -> Any:
        """Let Tune save a checkpoint to a new folder once the disks have space for it, and return the result."""
        if self._is_first:
            self._drop_unknown()
        return disk.patiently(self.disks(), lambda: self._try(save))

    def disks(self) -> list[Path]:
        """Return the folders that checkpoints are written to on this machine."""
        return [
            Path(tempfile.gettempdir()),
            *([self.folder.path.parent.parent] if self.folder.path is not None else []),
        ]

    def _try(self, save: Callable[[], Any]) -> Any:
        """Save once; delete what it has written if that fails: the disk may be full of it."""
        name = next_checkpoint(self.context)
        try:
            return save()
        except BaseException:
            with suppress(OSError, StorageError):
                (self.folder / name).remove()
            raise

    def _drop_unknown(self) -> None:
        """Delete what earlier workers have left that Tune does not know of, and number the checkpoints after them."""
        names = [name for name in self.folder.folders() if name.startswith(TUNE_CHECKPOINT)]
        for name in names:
            if name != self._known:
                (self.folder / name).remove()
        number_checkpoints_after(self.context, [*names, *([self._known] if self._known is not None else [])])
        self._is_first = False
