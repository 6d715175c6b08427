"""Import the report's libraries while trials run: the import takes two seconds, which would delay the command's end."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

LIBRARIES = (
    "plotly.graph_objects",
    "plotly.offline",
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "optuna.importance",
    "optuna.visualization",
    "jinja2",
)
"""Modules of the libraries that `write_report` imports."""
IMPORT_S = 20.0
"""Longest wait in seconds for the import that is under way at the end: its disk may be slow, or away."""
LOOK_S = 0.25
"""Seconds between two looks whether the trials have begun."""


@contextmanager
def imported_early(has_begun: Callable[[], bool]) -> Iterator[None]:
    """Import the libraries in a thread, once the first trial has been placed, unless the block ends before.

    The driver then has little to do: the first worker imports its framework. The block ends after the import that is
    under way: of a library that two threads import at once, one may get a part, or an error.
    """
    ended = threading.Event()

    def load() -> None:
        """Wait for the first trial, and import."""
        while not has_begun():
            if ended.wait(LOOK_S):
                return
        for name in LIBRARIES:
            if ended.is_set():
                return
            with suppress(Exception):  # the report itself says what it lacks
                importlib.import_module(name)

    thread = threading.Thread(target=load, name="report-libraries")
    try:
        thread.start()
        yield
    finally:
        ended.set()
        if thread.is_alive():
            thread.join(IMPORT_S)
