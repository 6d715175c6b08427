"""The state that Tune keeps of a sweep for `--resume`: read only if it is whole, and no other user can have written it.

It has pickles in it, and reading a pickle runs what it says. Damaged state would be taken for an empty sweep.
"""

from __future__ import annotations

import fnmatch
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray import cloudpickle

from raygpu.engines.tune.tune_private_api import CALLBACKS, EXPERIMENT, GENERATOR, SEARCHER, load_experiment_state
from raygpu.errors import BadInput, one_line
from raygpu.records.run_directory import RunDirectory
from raygpu.storage import Storage

READERS: dict[str, Callable[[bytes], Any]] = {
    EXPERIMENT: lambda content: load_experiment_state(content)["trial_data"],
    GENERATOR: cloudpickle.loads,
    SEARCHER: cloudpickle.loads,
    CALLBACKS: cloudpickle.loads,
}
"""Files of a start of the sweep, and how each is read."""
TUNER = "tuner.pkl"
BEFORE = "0-before"
"""Name, in place of the time of a start, of the state that a resumed sweep goes on from: it comes before every time."""


def has_state(folder: RunDirectory, say: Callable[[str], None]) -> bool:
    """Return whether a sweep can go on from Tune's state; False if it was ended before there was any.

    say: takes a line on state that others may have written. Raises BadInput if the state is damaged, or lies where
    other users can write.
    """
    files = folder.tune.files()
    newest = _newest(files)
    if newest[EXPERIMENT] is None or TUNER not in files:
        if folder.summary.is_file():
            raise BadInput(f"resume: {folder.tune} lacks the state that the sweep has had; {_advice(files)}")
        return False
    require_own(folder)
    if folder.tune.path is None:
        say(f"{folder.tune} has pickled state: whoever can write there can have code run here")
    for file, read in [(TUNER, cloudpickle.loads), *((newest[name], read) for name, read in READERS.items())]:
        if file is None:
            raise BadInput(f"resume: {folder.tune} lacks a part of its state; {_advice(files)}")
        _require_whole(folder, file, read, files)
    return True


def set_before(folder: RunDirectory) -> None:
    """Name the state that a sweep goes on from so that it comes before that of the start that begins now.

    Tune names a start's state by local time and restores the last name: in another time zone, or once the clock has
    been set back, that is not the last start's. Ended anywhere, this leaves the same state to go on from.
    """
    files = folder.tune.files()
    for name, file in _newest(files).items():
        if file is not None and file != name.format(BEFORE):
            folder.tune.write(name.format(BEFORE), folder.tune.read(file))
            folder.tune.sync(name.format(BEFORE))  # before the other one is gone
    for name in READERS:
        for file in fnmatch.filter(files, name.format("*")):  # the one that was copied last
            if file != name.format(BEFORE):
                folder.tune.discard(file)


def _newest(files: list[str]) -> dict[str, str | None]:
    """Return the file of each kind that Tune would restore. files: names of the files in Tune's folder, sorted."""
    return {name: max(fnmatch.filter(files, name.format("*")), default=None) for name in READERS}


def _require_whole(folder: RunDirectory, file: str, read: Callable[[bytes], Any], files: list[str]) -> None:
    """Raise BadInput if a file cannot be read."""
    content = folder.tune.read(file)
    try:
        read(content)
    except Exception as error:
        raise BadInput(f"resume: {folder.tune}/{file} is damaged ({one_line(error)}); {_advice(files)}") from error


def require_own(folder: RunDirectory) -> None:
    """Raise BadInput if another user could have written the state: reading it would run what they wrote."""
    path = folder.tune.path
    if path is None:
        return
    for each in (folder.path, path, *path.glob("*.pkl"), *path.glob("*.json")):
        status = each.stat()
        if status.st_uid not in (os.geteuid(), 0):
            raise BadInput(f"resume: {each} is another user's, who could have code run here; {_copy(folder.path)}")
        if status.st_mode & stat.S_IWOTH:
            raise BadInput(f"resume: everyone can write to {each}, and so have code run here; {_copy(folder.path)}")


def _copy(path: Path) -> str:
    return f"if you trust it, copy it: cp -r --no-preserve=mode,ownership {path} NEW, and resume NEW"


def _advice(files: list[str]) -> str:
    """Return what to do about damaged state. files: names of the files in Tune's folder."""
    before, after = EXPERIMENT.split("{}")
    starts = [name.removeprefix(before).removesuffix(after) for name in fnmatch.filter(files, EXPERIMENT.format("*"))]
    if len(starts) > 1:
        return f"move the files of {starts[-1]} away to go on from the state of the start before, {starts[-2]}"
    return "begin a new sweep; what has finished is in MLflow, and in trials.csv once a sweep has ended"


def moved(checkpoint: str, tune_folder: Storage) -> str:
    """Return the URI of a checkpoint in Tune's folder of a run as it is now: the run may have been copied or moved."""
    base, _ = Storage(checkpoint).parts()
    _, is_inside, place = base.rpartition(f"/{tune_folder.name}/")
    return (tune_folder / place).uri if is_inside else checkpoint
