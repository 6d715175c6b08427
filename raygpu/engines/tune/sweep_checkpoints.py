"""The last checkpoints of a running sweep's trials, by trial."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from raygpu.engines.tune.array_checkpoint import extract
from raygpu.engines.tune.saved_state import moved
from raygpu.errors import one_line
from raygpu.records.run_directory import MEMBERS
from raygpu.records.scratch import fetched
from raygpu.storage import Storage, StorageError

logger = logging.getLogger(__name__)
ENLARGED = "enlarged"
"""Folder, within Tune's, for the last checkpoints of trials that ran out of memory and go on with a larger share."""


class SweepCheckpoints:
    """URIs of the checkpoints that Tune has kept so far: of trials, and of the arrays in which they are under way."""

    def __init__(self, folder: Storage) -> None:
        """Begin without any. folder: Tune's own, of this sweep."""
        self._folder = folder
        self.own: dict[str, str] = {}
        """URI of each trial's own checkpoint: of its end, or of its best epoch so far if best epochs count."""
        self.arrays: dict[str, str] = {}
        """URI of the last checkpoint of each trial's array, for trials that were under way in it."""

    def add(self, path: str, trial_ids: Sequence[str], result: Mapping[str, Any]) -> None:
        """Note a checkpoint of Tune's. trial_ids: of its array. result: the report that came with it."""
        folder = self._folder.beside(path)
        if not result["failure"]:  # Tune deletes the checkpoint before this one
            self.forget(trial_ids)
        self.own.update({name: (folder / MEMBERS / name).uri for name in result["kept"]})
        self.arrays.update(dict.fromkeys(result["under_way"], folder.uri))

    def forget(self, names: Sequence[str]) -> None:
        """Forget trials' checkpoints, from which nothing goes on any more."""
        for name in names:
            self.own.pop(name, None)
            self.arrays.pop(name, None)

    def state(self) -> dict[str, dict[str, str]]:
        """Return the URIs for a resumed sweep."""
        return {"checkpoints": self.own, "arrays": self.arrays}

    def restore(self, state: Mapping[str, Mapping[str, str]]) -> None:
        """Take in an earlier start's URIs, whose folder may have been moved since."""
        self.own = {name: moved(uri, self._folder) for name, uri in state["checkpoints"].items()}
        self.arrays = {name: moved(uri, self._folder) for name, uri in state["arrays"].items()}

    def copy(self, name: str, number: int) -> str | None:
        """Copy a trial's last checkpoint, which Tune deletes once it saves the trial's end; return the copy's URI.

        number: of the copy, among those of the trial. None without a checkpoint, or if it cannot be copied.
        """
        last = self.arrays.get(name)
        if last is None or not Storage(last).is_dir():
            return None
        copy = self._folder / ENLARGED / f"{name}-{number}"
        try:
            Storage(last).copy_to(copy)
        except (OSError, StorageError):
            logger.exception("the checkpoint of trial %s, which begins anew", name)
            return None
        self.arrays[name] = copy.uri
        if (copy / MEMBERS / name).is_dir():
            self.own[name] = (copy / MEMBERS / name).uri
        return copy.uri

    def is_kept(self, name: str) -> bool:
        """Return whether a trial's own checkpoint is there."""
        return name in self.own and Storage(self.own[name]).is_dir()

    def extract(self, names: Sequence[str], folder: Path, warn: Callable[[str], None]) -> dict[str, str]:
        """Extract the checkpoints of trials from those of the arrays in which they were under way; return the paths.

        names: of the trials; those without one are left out. folder: for a folder for each; it is emptied. warn: takes
        a line on those that cannot be extracted.
        """
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier interruption
        by_array: dict[str, dict[str, Path]] = {}
        for name in names:
            if name in self.arrays and Storage(self.arrays[name]).is_dir():
                by_array.setdefault(self.arrays[name], {})[name] = folder / name
        extracted: dict[str, str] = {}
        for source, folders in by_array.items():
            try:
                for path in folders.values():
                    path.mkdir(parents=True)
                with fetched(Storage(source)) as checkpoint:
                    extract(checkpoint, folders)
            except Exception as error:  # a full disk, storage, a damaged file: the results are written all the same
                logger.exception("the parameters of %s", ", ".join(folders))
                warn(f"{', '.join(folders)}: parameters so far are not kept: {one_line(error)}")
                for path in folders.values():
                    shutil.rmtree(path, ignore_errors=True)
            else:
                extracted |= {name: str(path) for name, path in folders.items()}
        return extracted
