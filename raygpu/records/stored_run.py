"""The copy of a run in object storage: what of it is fetched, and what goes back.

Each start notes an id of its own in a file of the folder here, and in the run's state, which object storage has at
once. Where the state's id is not of a start in this folder, the last start was another machine's, and what it has left
in object storage is newer than what lies here.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from raygpu.errors import BadInput
from raygpu.records import run_lock
from raygpu.records.run_paths import RunPaths
from raygpu.records.whole_files import replacement, write_whole
from raygpu.storage import Storage

LAST_START = "last_start"
"""Key, in the state of a run in object storage, of the id of its last start."""
HERE, FETCHED = ".start", ".fetched"
"""Files with the ids of all starts in this folder, a line each, and of the start whose files were fetched last. Neither
is ever fetched."""
DELIVERED = ("run.json", "summary.json", "undelivered.jsonl", "undelivered.damaged.jsonl", "refused.jsonl")
"""Files that a delivery to MLflow changes."""


def bring_up_to_date(run: RunPaths) -> None:
    """Fetch the files of a run whose last start was another machine's, unless a process here works on it.

    Raises StorageError without an answer of the object storage, and BadInput where they cannot be written.
    """
    if run.storage is None:
        return
    run.storage.require_answer()
    state = _state_in(run.storage)
    fetched = run.path / FETCHED
    is_here = fetched.is_file() and fetched.read_text() == state.get(LAST_START)  # and may have been edited since
    if _is_elsewhere(run, state) and not is_here:
        if not os.access(run.path, os.W_OK):
            since = "another machine has gone on with the run since"
            raise BadInput(f"{run.path} cannot be written, and {since}; name it as {run.storage}")
        with run_lock.unless_held(run.path) as free:
            if free:
                fetch(run)


def fetch(run: RunPaths) -> None:
    """Download a run's files but for checkpoints and those of trials; after a start in this folder its state alone, for
    that start may have been killed before it had published the others.

    After a start on another machine, files that it has not left in object storage are deleted here. Raises
    StorageError.
    """
    storage = run.storage
    assert storage is not None
    state = _state_in(storage)
    is_elsewhere = _is_elsewhere(run, state)
    if LAST_START in state and not is_elsewhere:
        _replace(run.run, storage.read(run.run.name))
        return
    names = [name for name in storage.files() if not name.startswith(".")]
    for file in (run.path / name for name in names):
        stays = file == run.journal and file.exists() and not is_elsewhere
        content = storage.read(file.name) if not stays else b""
        grows = file in (run.timeline, run.population) and file.is_file()  # lines are only added
        if not (stays or (grows and file.read_bytes().startswith(content))):
            _replace(file, content)
    for folder in (run.best, run.plots):
        is_stored = (storage / folder.name).is_dir()
        if is_stored or is_elsewhere:
            shutil.rmtree(folder, ignore_errors=True)
        if is_stored:
            (storage / folder.name).download(folder)
    if is_elsewhere:
        _delete_replaced(run, names)
        write_whole(run.path / FETCHED, state[LAST_START])


def publish(run: RunPaths) -> None:
    """Copy the folder into object storage, if the run has its results there; of a run whose last start was another
    machine's, the files that a delivery has changed alone. Raises StorageError."""
    storage = run.storage
    if storage is None:
        return
    gone = [run.journal]
    if _is_elsewhere(run, _state_in(Storage(str(run.path)))):
        for file in (run.path / name for name in DELIVERED):
            if file.is_file():
                storage.upload(file)
    else:
        storage.upload(run.path)
        gone += [run.best_toml, run.error]
    for file in gone:
        if not file.exists() and storage.has(file.name):
            storage.discard(file.name)


def _state_in(folder: Storage) -> dict[str, Any]:
    """Return the state of a run in its folder; empty without one that can be read, as of a measurement under way in
    object storage."""
    try:
        state = json.loads(folder.read("run.json"))
    except (FileNotFoundError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def _is_elsewhere(run: RunPaths, state: dict[str, Any]) -> bool:
    """Return whether the last start that a run's state notes was not in this folder; False if it notes none."""
    noted = run.path / HERE
    return LAST_START in state and not (noted.is_file() and state[LAST_START] in noted.read_text().split())


def note_start(run: RunPaths, start: str) -> None:
    """Note the id of a start in this folder. Raises OSError."""
    noted = run.path / HERE
    earlier = noted.read_text().split() if noted.is_file() else []
    write_whole(noted, "".join(f"{each}\n" for each in (*earlier, start)))


def _replace(file: Path, content: bytes) -> None:
    with replacement(file) as temporary:
        temporary.write_bytes(content)


def _delete_replaced(run: RunPaths, names: list[str]) -> None:
    """Delete the files here that the last start has deleted or made anew."""
    results = (run.summary, run.error, run.sets_csv, run.trials_csv, run.objectives_csv, run.best_toml, run.report)
    for file in (*results, run.journal):
        if file.name not in names:
            file.unlink(missing_ok=True)
    shutil.rmtree(run.checkpoints, ignore_errors=True)
