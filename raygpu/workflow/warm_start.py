"""A trial's parameters with which a training begins, copied into its folder: a resume finds them there."""

from __future__ import annotations

from pathlib import Path

from raygpu.config.command_names import typed
from raygpu.errors import BadInput
from raygpu.records.run_directory import RunDirectory
from raygpu.records.whole_folder import WholeFolder
from raygpu.storage import Storage

START = "start"
"""Folder of the parameters, below the checkpoints."""
NOTE = "warm_start"
"""Key, in the state of a run, that tells of a warm start; written before the rest of the state."""


def taken(folder: RunDirectory, new: Path | None) -> Storage | None:
    """Return the folder of the parameters with which a training begins; None for fresh ones.

    new: a trial's checkpoint, which is copied into the folder of a training that is new; None for one without it, or
    that goes on. Raises BadInput as `kept` does.
    """
    if new is None:
        return kept(folder)
    start = _start(folder)
    start.replace(lambda part: part.upload(new))
    return start.folder


def kept(folder: RunDirectory) -> Storage | None:
    """Return the parameters with which an earlier start of the training began; None for fresh ones.

    Raises BadInput if they are lost, and there is no checkpoint to go on from.
    """
    start = _start(folder)
    if start.content is not None or not folder.read_run().get(NOTE, False):
        return start.content
    if not folder.training_checkpoints():
        raise BadInput(
            f"--resume: {folder} has no checkpoint yet, and no whole copy of the trial's parameters in {start.folder};"
            f" begin again with: {typed('train')} --from SWEEP --warm-start"
        )
    return start.folder  # missing: a worker that would need it fails


def _start(folder: RunDirectory) -> WholeFolder:
    return WholeFolder(folder.shared_checkpoints / START)
