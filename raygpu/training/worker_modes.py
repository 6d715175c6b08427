"""Modes of a worker that trains one trial after another: what a trial's code sets, the next trial does not find."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from contextlib import ExitStack
from typing import Any

from raygpu.training.modes import all_modes, defaults, read_modes, set_modes


class WorkerModes:
    """The modes, the environment, Python's output streams and its filters of warnings with which each trial of a worker
    begins: those that `note` finds.

    Of a library that a trial's code imports later, those are the library's defaults. A mode that a module sets while it
    is imported, in the first trial, cannot be told from what that trial sets: later trials do not find it either.
    Variables that are new stay, as those of a module that reads a file of them.
    """

    def __init__(self) -> None:
        self._values: dict[str, Any] | None = None
        self._environment: dict[str, str] = {}
        self._streams = sys.stdout, sys.stderr
        self._logging = logging.NOTSET
        """Level up to which logging is disabled."""
        self._captures = False
        """Whether logging captures warnings."""
        self._warnings = ExitStack()
        """Restores the filters of warnings when it is closed."""

    def note(self) -> None:
        """Take the present modes for those with which trials begin."""
        self._values, self._environment = read_modes(all_modes()), dict(os.environ)
        self._streams, self._logging = (sys.stdout, sys.stderr), logging.root.manager.disable
        self._captures = warnings.showwarning.__module__ == logging.__name__
        self._warnings.enter_context(warnings.catch_warnings())

    def restore(self) -> None:
        """Set the modes with which a trial begins; no effect before `note`."""
        if self._values is None:
            return
        set_modes(all_modes(), defaults() | self._values)
        sys.stdout, sys.stderr = self._streams
        logging.disable(self._logging)
        logging.captureWarnings(self._captures)  # noted by logging, too
        self._warnings.close()
        self._warnings.enter_context(warnings.catch_warnings())
        for name, value in self._environment.items():
            if os.environ.get(name) != value:
                os.environ[name] = value
