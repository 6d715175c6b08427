"""Read an array's checkpoint, and extract the trials' own checkpoints from it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from raygpu.training.base import ARRAY_CHECKPOINT

PROGRESS = "progress.json"
"""File of a checkpoint with the state of the array's members."""
POPULATION = "population.json"
"""File of a checkpoint with the members' reports to their population, and their changes."""


def extract(checkpoint: Path, folders: Mapping[str, Path]) -> None:
    """Write trials' own checkpoints from an array's. folders: output folder by id, of trials that `under_way` names."""
    if (checkpoint / ARRAY_CHECKPOINT).exists():
        from raygpu.training.fused.saved_array import save_saved_members

        save_saved_members(checkpoint, folders)
        return
    for name, folder in folders.items():
        own = checkpoint / name  # of a split device; a trial alone lies at the top
        for path in (own if own.is_dir() else checkpoint).iterdir():
            if path.is_file() and path.name not in (PROGRESS, POPULATION):
                shutil.copy(path, folder)
