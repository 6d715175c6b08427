"""A SQLite store that a batch job carries on its node's own disk: SQLite breaks on a file system that machines share.

The job copies the shared file to its disk, works there, and brings it back in one step, again and again. One job at a
time may do so: it holds a claim, a file beside the shared one. What another job writes meanwhile waits in its journal.

    RAYGPU_STORE_FOLDER     folder on the node's disk: SQLite stores are carried there
    RAYGPU_STORE_OWNER      job that carries them, as in its claims
    RAYGPU_SPOOL            set: nothing goes to a store, all waits in the run's journal for raygpu deliver
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import socket
import sqlite3
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

from raygpu.errors import TrackingError
from raygpu.records.whole_files import write_whole

FOLDER_VARIABLE = "RAYGPU_STORE_FOLDER"
OWNER_VARIABLE = "RAYGPU_STORE_OWNER"
SPOOL_VARIABLE = "RAYGPU_SPOOL"
INTERVAL_S = 60.0
"""Fewest seconds between two copies of a store."""
COPY_SHARE = 0.05
"""Largest share of the time for copies."""
CLAIM = ".claim"
UNKNOWN = "unknown"
"""Owner of a claim that does not say whose it is."""
STALE_S = 600.0
"""Age in seconds from which on an empty claim is nobody's: a full disk, or the end of its process, left it so."""
WITHOUT_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK)
"""Errors of a file system that has no hard links."""
ORIGIN = "shared"
"""File beside a copy that has the path of the shared file."""
_next: dict[Path, float] = {}
"""Earliest time of the next copy, by the clock that never goes back, for each shared file."""


def spools() -> bool:
    """Return whether this process leaves all writes in journals."""
    return bool(os.environ.get(SPOOL_VARIABLE))


def folder() -> Path | None:
    """Return the folder on this node's disk in which stores are carried; None where they are used in place."""
    text = os.environ.get(FOLDER_VARIABLE)
    return Path(text) if text else None


def working_copy(shared: Path) -> Path:
    """Return the file to work on: the shared one, or its copy on this node's disk, made if need be.

    Raises TrackingError if a job carries the store, and this process is not part of it.
    """
    parent = folder()
    if parent is None:
        require_free(shared)
        return shared
    return fetch(shared, parent)


def fetch(shared: Path, parent: Path) -> Path:
    """Copy the shared file to a folder of this node, unless a copy is there already; return the copy's path.

    Raises TrackingError if another job has claimed the file, which may be another one than the driver was told.
    """
    try:
        if (owner := os.environ.get(OWNER_VARIABLE)) and claim(shared, owner) is not None:
            require_free(shared)
    except OSError as error:
        raise TrackingError(f"tracking.uri: {str(shared)!r} cannot be claimed: {error.strerror}") from error
    copy = copy_of(shared, parent)
    copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if _origin(copy) != shared:
        write_whole(copy.parent / ORIGIN, str(shared), lasting=False)
    if not copy.exists() and shared.exists():
        for ending in ("-wal", ""):  # the file itself last: it says that all is there
            beside = shared.with_name(shared.name + ending)
            if beside.exists():
                temporary = copy.with_name(f"{copy.name}{ending}.tmp")
                shutil.copyfile(beside, temporary)
                temporary.replace(copy.with_name(copy.name + ending))
    return copy


def copy_of(shared: Path, parent: Path) -> Path:
    """Return the path of a shared file's copy below a node's folder."""
    return parent / hashlib.sha256(str(shared).encode()).hexdigest()[:8] / shared.name


def carried(parent: Path) -> list[Path]:
    """Return the shared files whose copies are below a node's folder, as far as that can be read."""
    origins = [_origin(each) for each in sorted(parent.glob(f"*/{ORIGIN}"))]
    return [origin for origin in origins if origin is not None]


def _origin(copy: Path) -> Path | None:
    """Return the path of the shared file that a copy was made of; None where the file beside the copy has none."""
    try:
        text = (copy.parent / ORIGIN).read_text()
    except (OSError, ValueError):
        return None
    return Path(text) if text else None


def bring_back(shared: Path, parent: Path) -> None:
    """Replace the shared file by the present content of its copy, in one step. Raises OSError, or sqlite3.Error."""
    copy = copy_of(shared, parent)
    if not copy.exists():
        return
    snapshot = copy.with_name(f"{copy.name}.snapshot")
    snapshot.unlink(missing_ok=True)
    with closing(sqlite3.connect(copy)) as source, closing(sqlite3.connect(snapshot)) as target:
        source.backup(target)
        target.execute("PRAGMA journal_mode=DELETE")  # no write-ahead log: it does not work over a network
    temporary = shared.with_name(f"{shared.name}.{os.getpid()}.tmp")
    try:
        shared.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(snapshot, temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(shared)
        for ending in ("-wal", "-shm"):  # of an earlier file
            shared.with_name(shared.name + ending).unlink(missing_ok=True)
    finally:
        temporary.unlink(missing_ok=True)
        snapshot.unlink(missing_ok=True)


def keep(uri_path: Path | None, *, now: bool = False) -> bool:
    """Bring a store back if it is carried and its time has come; return whether the shared file has all writes.

    uri_path: file that is worked on; None for a store that is no file. now: whether it is time in any case.
    """
    parent = folder()
    if parent is None or uri_path is None or not uri_path.is_relative_to(parent):
        return True
    shared = _origin(uri_path)
    if shared is None or (not now and time.monotonic() < _next.get(shared, 0.0)):
        return False
    began = time.monotonic()
    try:
        bring_back(shared, parent)
    except (OSError, sqlite3.Error):  # the journal keeps the writes; it is tried again
        _next[shared] = time.monotonic() + INTERVAL_S
        return False
    took = time.monotonic() - began
    _next[shared] = time.monotonic() + max(INTERVAL_S, took / COPY_SHARE)
    return True


def claim(shared: Path, owner: str) -> str | None:
    """Claim a shared file for a job; return None, or the owner who has it. Claiming again is no fault. Raises OSError
    if there can be no file beside the shared one."""
    if holder_of(shared) == owner:  # a full disk takes nothing from it
        return None
    path = claim_of(shared)
    path.parent.mkdir(parents=True, exist_ok=True)
    if _is_stale(path):
        path.unlink(missing_ok=True)
    try:
        _make(path, owner)
    except FileExistsError:
        holder = holder_of(shared)
        return None if holder == owner else holder or UNKNOWN
    return None


def _make(path: Path, owner: str) -> None:
    """Make the file of a claim. Raises FileExistsError, or another OSError."""
    mine = path.with_name(f"{path.name}.{socket.gethostname()}.{os.getpid()}.{threading.get_ident()}")
    try:
        mine.write_text(owner)
        os.link(mine, path)  # in one step with its content, over a network too
    except OSError as error:
        if error.errno not in WITHOUT_LINKS:
            raise
        with path.open("x") as file:  # there a moment before its content
            try:
                file.write(owner)
                file.flush()
                os.fsync(file.fileno())  # NFS tells of a full disk only then
            except OSError:
                path.unlink()
                raise
    finally:
        with suppress(OSError):
            mine.unlink(missing_ok=True)


def release(shared: Path, owner: str) -> None:
    """Give up the claim of a job on a shared file, if that job has it."""
    if holder_of(shared) == owner:
        with suppress(OSError):
            claim_of(shared).unlink()


def holder_of(shared: Path) -> str | None:
    """Return the job that has claimed a shared file, UNKNOWN where its claim does not say; None without a claim, or
    with one that is empty for long."""
    path = claim_of(shared)
    try:
        return path.read_text().strip() or (None if _is_stale(path) else UNKNOWN)
    except OSError:
        return UNKNOWN if os.path.lexists(path) else None


def _is_stale(path: Path) -> bool:
    """Return whether the file of a claim is there, but has been empty for longer than its process takes to fill it."""
    try:
        stat = path.stat()
    except OSError:
        return False
    return stat.st_size == 0 and time.time() - stat.st_mtime > STALE_S


def claim_of(shared: Path) -> Path:
    """Return the file of the claim on a shared file."""
    return shared.with_name(shared.name + CLAIM)


def require_free(shared: Path) -> None:
    """Raise TrackingError if a job carries this store."""
    if (holder := holder_of(shared)) is not None:
        raise TrackingError(
            f"tracking.uri: read {str(shared)!r}; Slurm job {holder} works on it until its end; name another store, or"
            f" if that job has ended, delete {claim_of(shared)}"
        )
