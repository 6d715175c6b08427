"""Folders for temporary files that no other user can write to, one for each process.

It is deleted when the process ends, or by the next process if that one was killed.

    folder = tempfile.mkdtemp(prefix="kept-", dir=scratch.home())
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path

from raygpu.storage import Storage

LOCK = "lock"
"""File that a living process holds a lock on, and so does every process that it has forked."""
_homes: dict[tuple[int, Path], tuple[Path, TextIOWrapper]] = {}
"""Folders and open locks by process and parent: a forked process gets a folder of its own."""


def private_folder(path: Path) -> Path:
    """Return the folder, made if need be. Raises OSError if it cannot be made, or if others can write to it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.lstat()
    if path.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"{path} is open to others; remove it")
    return path


def shared_folder() -> Path:
    """Return the folder of this user below the system's folder for temporary files, made if need be. Raises OSError."""
    return private_folder(Path(tempfile.gettempdir()) / f"raygpu-{os.getuid()}")


def home(parent: Path | None = None) -> Path:
    """Return this process' folder, made at the first call. Raises OSError.

    parent: folder of this user in which it lies; by default `shared_folder()`.
    """
    parent = parent or shared_folder()
    key = os.getpid(), parent
    if not _has_home(key):
        delete_abandoned(parent)
        with locked(parent):
            if not _has_home(key):  # another thread may have made it
                folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=parent))
                lock = (folder / LOCK).open("w")
                fcntl.flock(lock, fcntl.LOCK_EX)
                _homes[key] = folder, lock
                atexit.register(_delete_own, key)
    return _homes[key][0]


def _has_home(key: tuple[int, Path]) -> bool:
    return key in _homes and _homes[key][0].is_dir()


def living() -> dict[int, Path]:
    """Return the folders of this user's living processes below `shared_folder()`, by pid. Empty if there are none."""
    try:
        folders = [folder for folder in shared_folder().iterdir() if folder.name[:1].isdigit()]
    except OSError:
        return {}
    return {int(folder.name.partition("-")[0]): folder for folder in folders if not _is_abandoned(folder)}


def delete_abandoned(parent: Path | None = None) -> None:
    """Delete the folders of processes that have ended. Raises OSError."""
    parent = parent or shared_folder()
    with locked(parent):
        for folder in parent.iterdir():
            if folder.name[:1].isdigit() and folder.is_dir() and _is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def fetched(storage: Storage) -> Iterator[Path]:
    """Yield a storage's content as a folder of this machine: the folder itself on disk, a temporary copy of object
    storage."""
    if storage.path is not None:
        yield storage.path
        return
    with tempfile.TemporaryDirectory(prefix="fetched-", dir=home()) as folder:
        storage.download(Path(folder))
        yield Path(folder)


def _is_abandoned(folder: Path) -> bool:
    try:
        with (folder / LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


@contextmanager
def locked(parent: Path) -> Iterator[None]:
    """Keep other processes from making or deleting folders: one without its lock is not yet abandoned."""
    with (parent / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def lock_file(path: Path) -> int | None:
    """Return the descriptor of a file, made if need be, that is locked until it is closed; None if another process
    holds it, or has deleted it meanwhile. Raises OSError."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    is_ours = False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_ours = os.path.samestat(os.fstat(file), path.stat())
    except (BlockingIOError, FileNotFoundError):
        pass
    finally:
        if not is_ours:
            os.close(file)
    return file if is_ours else None


def _delete_own(key: tuple[int, Path]) -> None:
    if key[0] == os.getpid():
        shutil.rmtree(_homes[key][0], ignore_errors=True)
