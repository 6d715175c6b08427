"""The logs of a service's Ray, held to a size: those of workers that have ended are deleted, the oldest first."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MOST_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of a log, with its size in bytes and the time of its last line in seconds since 1970."""

    path: Path
    size: int
    changed: float


def prune(folder: Path) -> None:
    """Delete the oldest logs of ended workers below a folder until all logs have at most so many bytes."""
    files = []
    with suppress(OSError):
        for path in folder.iterdir():
            with suppress(OSError):
                status = path.stat()
                if path.is_file():
                    files.append(LogFile(path, status.st_size, status.st_mtime))
    for file in superfluous(files, MOST_BYTES, _pids()):
        with suppress(OSError):
            file.path.unlink()


def superfluous(files: Iterable[LogFile], most_bytes: int, living: Collection[int]) -> list[LogFile]:
    """Return the files to delete: the oldest, of processes that have ended, until the others have `most_bytes`.

    Workers' files are named after the pid of their process, `worker-...-PID.out`; other files stay.
    """
    everything = sorted(files, key=lambda file: file.changed)
    excess = sum(file.size for file in everything) - most_bytes
    chosen = []
    for file in everything:
        if excess <= 0:
            break
        pid = file.path.name.split(".")[0].rpartition("-")[2].rpartition("_")[2]
        if "worker" in file.path.name and pid.isdigit() and int(pid) not in living:
            chosen.append(file)
            excess -= file.size
    return chosen


def _pids() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}
