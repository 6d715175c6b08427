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

from raygpu.engines.tune.tune_private_api import load_experiment_state
from raygpu.errors import BadInput, one_line
from raygpu.records.run_directory import RunDirectory

EXPERIMENT = "experiment_state-{}.json"
READERS: dict[str, Callable[[bytes], Any]] = {
    EXPERIMENT: lambda content: load_experiment_state(content)["trial_data"],
    "search_gen_state-{}.json": cloudpickle.loads,
    "searcher-state-{}.pkl": cloudpickle.loads,
    "callback-states-{}.pkl": cloudpickle.loads,
}
"""Files of a start of the sweep, by Tune's names with the time of the start, and how each is read."""
TUNER = "tuner.pkl"


def has_state(folder: RunDirectory, say: Callable[[str], None]) -> bool:
    """Return whether a sweep can go on from Tune's state; False if it was ended before there was any.

    say: takes a line on state that others may have written. Raises BadInput if the state is damaged, or lies where
    other users can write.
    """
    files = folder.tune.files()
    newest = {name: max(fnmatch.filter(files, name.format("*")), default=None) for name in READERS}
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


def _require_whole(folder: RunDirectory, file: str, read: Callable[[bytes], Any], files: list[str]) -> None:
    """Raise BadInput if a file cannot be read."""
    content = folder.tune.read(file)
    try:
        read(content)
    except Exception as error:
        if isinstance(error, ImportError | AttributeError) and "raygpu" in str(error):
            # The state names classes that this version does not have.
            raise BadInput(
                f"resume: read {folder.path}, which another version of raygpu began ({one_line(error)}); go on with"
                " that version, or begin a new sweep"
            ) from error
        raise BadInput(f"resume: {folder.tune}/{file} is damaged ({one_line(error)}); {_advice(files)}") from error


def require_own(folder: RunDirectory) -> None:
    """Raise BadInput if another user could have written the state: reading it would run what they wrote."""
    path = folder.tune.path
    if path is None:
        return
    for each in (folder.path, path, *path.glob("*.pkl"), *path.glob("*.json")):
        told = each.stat()
        if told.st_uid not in (os.geteuid(), 0):
            raise BadInput(f"resume: {each} is another user's, who could have code run here; {_copy(folder.path)}")
        if told.st_mode & stat.S_IWOTH:
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
