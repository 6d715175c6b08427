"""One process at a time works on a run's folder."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from raygpu.errors import BadInput

FILE = ".lock"
_CLAIMS: dict[Path, IO[str]] = {}
"""Locked file of each run that this process works on."""


def claim(folder: Path) -> None:
    """Lock a run's folder until `release`, or the end of this process. Raises BadInput if another process has it."""
    if folder in _CLAIMS:
        return
    try:
        lock = (folder / FILE).open("a")
    except OSError as error:
        raise BadInput(f"{folder}: cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise BadInput(f"{folder}: another process works on this run; wait for its end, or end it") from error
    except OSError:  # a file system without locks
        lock.close()
        return
    _CLAIMS[folder] = lock


@contextmanager
def unless_held(folder: Path) -> Iterator[bool]:
    """Lock a run's folder meanwhile; yield False if a process works on the run, this one or another."""
    free = folder not in _CLAIMS
    try:
        claim(folder)
    except BadInput:
        free = False
    try:
        yield free
    finally:
        if free:
            release(folder)


def release(folder: Path) -> None:
    """Let other processes have the folder."""
    if (lock := _CLAIMS.pop(folder, None)) is not None:
        lock.close()
