"""Folders of this user alone below /tmp, where everyone can write."""

from __future__ import annotations

import os
from pathlib import Path


def private_folder(path: Path) -> Path:
    """Return the folder, made if need be. Raises OSError if it cannot be made, or if others can write to it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.lstat()
    if path.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"{path} is open to others; remove it")
    return path
