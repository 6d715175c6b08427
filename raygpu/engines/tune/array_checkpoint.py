"""The content of an array's checkpoint, and the way to take trials' own checkpoints out of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from raygpu.storage import Storage
from raygpu.training.base import ARRAY_CHECKPOINT

MEMBERS = "members"
"""The folder that holds a folder for each trial whose parameters are kept."""
PROGRESS = "progress.json"
"""The state of its members."""


def under_way(checkpoint: Storage) -> list[str]:
    """The trials that would go on from an array's checkpoint."""
    names: list[str] = json.loads(checkpoint.read(PROGRESS))["under_way"]
    return names


def extract(checkpoint: Path, folders: Mapping[str, Path]) -> None:
    """Write what `under_way` names as the trials' own checkpoints. folders: of each wanted trial."""
    if (checkpoint / ARRAY_CHECKPOINT).exists():
        from raygpu.training.fused.model_array import save_saved_members

        save_saved_members(checkpoint, folders)
        return
    for name, folder in folders.items():
        own = checkpoint / name  # of a split device; a trial alone lies at the top
        for path in (own if own.is_dir() else checkpoint).iterdir():
            if path.is_file() and path.name != PROGRESS:
                shutil.copy(path, folder)
