"""The checkpoints of a sweep's trials that are kept in its run's folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from raygpu.errors import BadInput
from raygpu.records.run_directory import MEMBERS, PROGRESS, SCORE, TUNE_CHECKPOINT, RunDirectory
from raygpu.records.run_paths import CHECKPOINTS
from raygpu.records.whole_folder import WholeFolder
from raygpu.storage import Storage, StorageError

ADVICE = "restore it, or delete the checkpoint's folder"
DELETIONS = 16
"""Number of checkpoints that are deleted at once."""


def kept_epoch(checkpoint: Storage) -> int | None:
    """Return the epoch that is noted in a trial's kept checkpoint; None in one of the trial's end, or without one.

    Raises BadInput if its file is damaged.
    """
    try:
        return int(json.loads(checkpoint.read(SCORE))["epoch"]) if checkpoint.has(SCORE) else None
    except (KeyError, ValueError, TypeError) as error:
        raise BadInput(f"{checkpoint / SCORE}: no epoch is noted; {ADVICE}") from error


def keep_checkpoints(
    folder: RunDirectory, by_trial: Mapping[str, str], wanted: Sequence[str], ended: Collection[str], *, complete: bool
) -> None:
    """Copy the wanted trials' checkpoints, of the last or the best epoch, to `checkpoints/<id>/`; delete others there.

    ended: trials that will not go on. What one of them has there alone, since an earlier end dropped Tune's copy, stays
    until the sweep is complete: it may be wanted again by then. complete: no trial will go on from a checkpoint, so
    Tune's own copies are dropped.
    """
    sources = {trial_id: Storage(uri) for trial_id, uri in by_trial.items()}

    def is_dropped(trial_id: str) -> bool:
        """Return whether a trial's kept checkpoint is deleted, as one of an earlier interruption."""
        if trial_id in wanted:
            return False
        return complete or trial_id not in ended or (trial_id in sources and _is_whole(sources[trial_id]))

    for trial_id in (folder.shared / CHECKPOINTS).folders() if folder.storage is not None else []:
        if is_dropped(trial_id):
            (folder.shared / CHECKPOINTS / trial_id).remove()
    for checkpoint in folder.checkpoints.iterdir() if folder.checkpoints.is_dir() else []:
        if is_dropped(checkpoint.name):
            shutil.rmtree(checkpoint, ignore_errors=True)
    for trial_id, source in sources.items():
        if trial_id in wanted and _is_whole(source):
            _copy(source, folder.checkpoints / trial_id)
            if folder.storage is not None:  # an earlier one, which would be taken for the newer
                (folder.shared / CHECKPOINTS / trial_id).remove()
    if complete:
        checkpoints = {_array(source) or source for source in sources.values()}
        with ThreadPoolExecutor(DELETIONS) as pool:  # object storage takes as long for one as for many
            list(pool.map(_remove, checkpoints))


def _copy(source: Storage, target: Path) -> None:
    """Put a trial's checkpoint in the place of its earlier one, in one step."""
    WholeFolder(Storage(str(target))).replace(lambda part: source.download(Path(part.uri)))


def _array(source: Storage) -> Storage | None:
    """Return the checkpoint of Tune's that a trial's own one lies in; None if it lies elsewhere."""
    return source.parent.parent if source.parent.name == MEMBERS else None


def _is_whole(source: Storage) -> bool:
    """Return whether a trial's checkpoint is there, and nobody has begun to delete it."""
    array = _array(source)
    return source.is_dir() and (array is None or array.has(PROGRESS))


def _remove(checkpoint: Storage) -> None:
    """Delete a checkpoint of Tune's, and earlier ones of the same Tune trial, whose deletion a killed command has left
    undone. One that may not be deleted stays whole."""
    with suppress(OSError, StorageError):
        _delete(checkpoint)
        if checkpoint.name.startswith(TUNE_CHECKPOINT):
            for name in checkpoint.parent.folders():
                if name.startswith(TUNE_CHECKPOINT):
                    _delete(checkpoint.parent / name)


def _delete(checkpoint: Storage) -> None:
    """Delete a checkpoint: its progress first, in one step, for a command that is stopped in between would leave a
    part."""
    if checkpoint.has(PROGRESS):
        checkpoint.discard(PROGRESS)
    checkpoint.remove()
