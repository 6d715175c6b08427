"""The state that Ray Train keeps of a run's checkpoints, and a copy of it.

Ray Train writes over its file. If the disk is full at that moment, or the machine dies, what is left is no state, and
Ray Train refuses the run for ever. In object storage a file is replaced as a whole.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

STATE = "checkpoint_manager_snapshot.json"
"""Ray Train's name of the file, in the run's folder."""
COPY = ".checkpoint_manager_snapshot.json"


def back_up(folder: Path) -> None:
    """Copy the state, in one step. folder: Ray Train's folder of the run."""
    part = folder / f"{COPY}.tmp"
    shutil.copyfile(folder / STATE, part)
    with part.open("rb+") as file:
        os.fsync(file.fileno())
    part.replace(folder / COPY)


def mend(folder: Path) -> None:
    """Put the copy in the place of a state that cannot be read; without a copy, the run has no checkpoint yet."""
    state, copy = folder / STATE, folder / COPY
    if not state.is_file():
        return
    try:
        json.loads(state.read_bytes())
    except ValueError:
        if copy.is_file():
            shutil.copyfile(copy, state)
        else:
            state.unlink()
