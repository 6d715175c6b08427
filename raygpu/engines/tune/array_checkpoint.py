"""Read an array's checkpoint, and extract the trials' own checkpoints from it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from raygpu.engines.tune.member_report import breaks_device
from raygpu.errors import one_line
from raygpu.records.run_directory import PROGRESS, SCORE
from raygpu.search.scoring import TrialScores
from raygpu.storage import S3_SAID, StorageError
from raygpu.training.base import ARRAY_CHECKPOINT, NotAsAlone
from raygpu.training.out_of_memory import is_out_of_memory

POPULATION = "population.json"
"""File of a checkpoint with the members' reports to their population, and their changes."""
GONE = "Could not recover from checkpoint as it does not exist"
"""Beginning of Tune's error for a checkpoint that is gone."""
OTHER_MODEL = "loading state_dict"
"""Part of torch's error for a checkpoint of another model than the code makes."""


class DamagedCheckpoint(Exception):
    """A file of a checkpoint is gone, or its content cannot be read."""


@contextmanager
def reading() -> Iterator[None]:
    """Raise DamagedCheckpoint for what fails inside because of the files, and other faults, which may pass, as they
    are. Nothing but the reading belongs inside: code of the user's and devices may raise anything."""
    try:
        yield
    except Exception as error:
        if not _is_damage(error):
            raise
        raise DamagedCheckpoint(one_line(error)) from error


def _is_damage(error: Exception) -> bool:
    if isinstance(error, StorageError | NotAsAlone | MemoryError | ImportError) or is_out_of_memory(error):
        return False
    if OTHER_MODEL in str(error):
        return False
    if isinstance(error, OSError) and not isinstance(error, FileNotFoundError | NotADirectoryError):
        return error.errno is None and S3_SAID not in str(error)  # a library's own, on the content of a file
    return not breaks_device(str(error))


def extract(checkpoint: Path, folders: Mapping[str, Path]) -> None:
    """Write trials' own checkpoints from an array's, with their epoch, which may be an earlier one than the last that
    was reported. folders: output folder by id, of trials that `under_way` names."""
    _extract(checkpoint, folders)
    progress = json.loads((checkpoint / PROGRESS).read_text())
    if progress["earlier"]:  # a function or a script decides itself when its state is saved
        return
    for name, folder in folders.items():
        scores = TrialScores(**progress["scores"][name])
        (folder / SCORE).write_text(json.dumps({"epoch": scores.last_epoch or 0, "score": scores.last}))


def _extract(checkpoint: Path, folders: Mapping[str, Path]) -> None:
    if (checkpoint / ARRAY_CHECKPOINT).exists():
        from raygpu.training.fused.saved_array import save_saved_members

        save_saved_members(checkpoint, folders)
        return
    for name, folder in folders.items():
        member_folder = checkpoint / name  # of a split device; a trial alone lies at the top
        for path in (member_folder if member_folder.is_dir() else checkpoint).iterdir():
            if path.is_file() and path.name not in (PROGRESS, POPULATION):
                shutil.copy(path, folder)
