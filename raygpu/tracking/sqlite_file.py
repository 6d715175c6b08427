"""Create SQLite files for MLflow with a write-ahead log: commits wait less for the disk, and the UI reads meanwhile."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

LOCAL = frozenset({"apfs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"})
"""File systems of one machine; over a network, a write-ahead log breaks the file (sqlite.org/wal.html)."""
MOUNTS = Path("/proc/self/mounts")


def create(path: Path) -> None:
    """Create the database file with a write-ahead log, unless it exists or its folder is not on a local file system."""
    if path.exists() or file_system(path.parent) not in LOCAL:
        return
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode=WAL")  # kept in the file


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
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), mount_point)
