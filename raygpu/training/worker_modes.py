"""Modes of a worker that trains one trial after another: what a trial's code sets, the next trial does not find."""

from __future__ import annotations

import os
from typing import Any

from raygpu.training.modes import all_modes, defaults, read_modes, set_modes


class WorkerModes:
    """The modes and the environment with which each trial of a worker begins: those that `note` finds.

    Of a library that a trial's code imports later, those are the library's defaults. A mode that a module sets while it
    is imported, in the first trial, cannot be told from what that trial sets: later trials do not find it either.
    Variables that are new stay, as those of a module that reads a file of them.
    """

    def __init__(self) -> None:
        self._values: dict[str, Any] | None = None
        self._environment: dict[str, str] = {}

    def note(self) -> None:
        """Take the present modes for those with which trials begin."""
        self._values, self._environment = read_modes(all_modes()), dict(os.environ)

    def restore(self) -> None:
        """Set the modes with which a trial begins; no effect before `note`."""
        if self._values is None:
            return
        set_modes(all_modes(), defaults() | self._values)
        for name, value in self._environment.items():
            if os.environ.get(name) != value:
                os.environ[name] = value
