"""The files of loaded modules as they were when an experiment was imported: the code in memory is that of then."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

_states: dict[str, tuple[int, int, int] | None] = {}
"""Size, time of change and inode of each file, as it was first seen; None where there was no file."""


def module_variables(module: object) -> Mapping[str, Any]:
    """Return the variables of a loaded module, without loading one that waits for its first use."""
    try:
        variables = object.__getattribute__(module, "__dict__")
    except AttributeError:  # another object in the place of a module
        return {}
    return variables if isinstance(variables, dict) else {}


def module_file(module: object) -> str | None:
    """Return the file of a loaded module; None without one."""
    file = module_variables(module).get("__file__")
    return file if isinstance(file, str) else None


def note_files() -> None:
    """Note the files of all loaded modules that were not noted before."""
    for module in tuple(sys.modules.values()):
        if (file := module_file(module)) is not None and file not in _states:
            _states[file] = _state(file)


def forget_file(file: str) -> None:
    """Forget a file whose code runs anew."""
    _states.pop(file, None)


def has_changed(file: str) -> bool:
    """Return whether a file was written to since it was noted, or is gone; note it now if it was not."""
    now = _state(file)
    return now is None or _states.setdefault(file, now) != now


def _state(file: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino
