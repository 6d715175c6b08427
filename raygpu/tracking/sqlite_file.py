"""A new SQLite file for MLflow, with a write-ahead log: commits wait less for the disk, and the UI reads meanwhile."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

LOCAL = frozenset({"apfs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"})
"""File systems of one machine. Over a network, a write-ahead log breaks the file (sqlite.org/wal.html)."""
MOUNTS = Path("/proc/self/mounts")


def create(path: Path) -> None:
    """Make the file, if it does not exist yet and lies on this machine; any other is left as it is."""
    if path.exists() or file_system(path.parent) not in LOCAL:
        return
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode=WAL")  # kept in the file


def file_system(folder: Path) -> str | None:
    """The kind of file system that a folder lies on, as Linux names it; None where it does not tell."""
    try:
        lines = MOUNTS.read_text().splitlines()
    except OSError:
        return None
    kinds = {Path(_plain(line.split()[1])): line.split()[2] for line in lines}  # a later mount hides an earlier one
    folder = folder.resolve()
    return next((kinds[parent] for parent in (folder, *folder.parents) if parent in kinds), None)


def _plain(mount_point: str) -> str:
    """Spaces and the like are written as octal numbers there."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), mount_point)
