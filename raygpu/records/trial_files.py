"""The files that a script's trials have written, in `trials/<id>/files/` of the run's folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from raygpu.records.run_directory import RunDirectory
from raygpu.search.trials import Trial

FILES = "files"
"""Folder of a trial's folder with the files that its script has written."""
BEFORE = "files.before"
"""Folder of a trial's folder with the files of earlier starts, where the script has begun anew, in folders `1`, `2` ...
"""
WORK = "work"
"""Folder of a trial's folder with the script's working directory, while the trial runs."""


def kept_files(folder: RunDirectory, trial_id: str) -> Path | None:
    """Return the folder of a trial's files on this machine, downloaded if need be; None if none were kept."""
    name = Trial.require_name(trial_id)
    local_files, shared = folder.trials / name / FILES, folder.shared_trials / name / FILES
    if folder.storage is not None and shared.is_dir():
        shutil.rmtree(local_files, ignore_errors=True)
        shared.download(local_files)
    return local_files if local_files.is_dir() else None


def drop_files(folder: RunDirectory, trial_ids: Iterable[str]) -> None:
    """Delete the files of these trials, which are not kept."""
    for trial_id in trial_ids:
        for name in (FILES, BEFORE, WORK):
            (folder.shared_trials / trial_id / name).remove()
