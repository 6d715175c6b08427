"""SQLite files for MLflow, with a write-ahead log: the UI reads meanwhile, and one wait for the disk serves many runs.

MLflow commits five times for a run. With SQLite's default each commit waits for the disk; with `synchronous=NORMAL`
none does, and `sync` waits for all. raygpu calls it before it forgets its own copy of what was written.
"""

from __future__ import annotations

import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

LOCAL = frozenset({"apfs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"})
"""File systems of one machine; over a network, a write-ahead log breaks the file (sqlite.org/wal.html)."""
MOUNTS = Path("/proc/self/mounts")
_deferring: set[Path] = set()
"""Files whose connections in this process do not wait for the disk, and do not outlive the file."""
INODE = "raygpu.inode"
"""Number of the file that a connection was opened to, in SQLAlchemy's record of the connection."""


def create(path: Path) -> None:
    """Create the database file with a write-ahead log, unless it exists or its folder is not on a local file system."""
    if path.exists() or file_system(path.parent) not in LOCAL:
        return
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode=WAL")  # kept in the file


def defer_syncs(path: Path) -> None:
    """Let commits to a file with a write-ahead log not wait for the disk, for the connections that SQLAlchemy will open
    in this process; `sync` waits for all of them.

    A connection whose file was replaced is not used again: its commits would succeed, and nobody would ever read them.
    """
    from sqlalchemy import Engine, event

    if not _deferring:
        event.listen(Engine, "connect", _defer)
        event.listen(Engine, "checkout", _require_same)
    _deferring.add(path.resolve())


def _defer(connection: Any, record: Any) -> None:
    """Set the level of a new connection, if it is to one of the files."""
    if not isinstance(connection, sqlite3.Connection):
        return
    path = Path(connection.execute("PRAGMA database_list").fetchone()[2]).resolve()
    if path not in _deferring:
        return
    record.info[INODE] = path, inode(path)
    if connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
        connection.execute("PRAGMA synchronous=NORMAL")


def _require_same(_: object, record: Any, __: object) -> None:
    """Have SQLAlchemy open a connection anew if its file was replaced."""
    from sqlalchemy import exc

    path, opened = record.info.get(INODE, (None, None))
    if path is not None and inode(path) not in (None, opened):
        raise exc.InvalidatePoolError(f"{path} was replaced")


def inode(path: Path) -> int | None:
    """Return the number of a file, by which it is told from one that takes its place; None without a file."""
    try:
        return path.stat().st_ino
    except OSError:
        return None


def has_log(path: Path) -> bool:
    """Return whether a database file has a write-ahead log, so that processes which write to it wait for each other's
    commits alone.

    SQLite has to tell: to read and close the file would free the locks that this process' connections hold on it, and
    without them another process deletes the log (sqlite.org/howtocorrupt.html, 2.2).
    """
    if not path.exists():
        return False
    try:
        with closing(sqlite3.connect(path)) as database:
            return bool(database.execute("PRAGMA journal_mode").fetchone()[0] == "wal")
    except sqlite3.Error:
        return False


def sync(path: Path) -> None:
    """Wait until the disk has all that was committed to the file. Raises OSError."""
    # What is no longer in the write-ahead log, SQLite has moved into the file itself, and waited for.
    try:
        log = os.open(f"{path}-wal", os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(log)
    finally:
        os.close(log)


def file_system(folder: Path) -> str | None:
    """Return Linux's name for the file system of a folder, as "ext4"; None where Linux does not list it."""
    try:
        lines = MOUNTS.read_text().splitlines()
    except OSError:
        return None
    kinds = {Path(_plain(line.split()[1])): line.split()[2] for line in lines}  # a later mount hides an earlier one
    folder = folder.resolve()
    return next((kinds[parent] for parent in (folder, *folder.parents) if parent in kinds), None)


def _plain(mount_point: str) -> str:
    """Decode the octal numbers that stand for spaces and the like in /proc/self/mounts."""
    return re.sub(r"\\([0-7]{3})", lambda digits: chr(int(digits[1], 8)), mount_point)
