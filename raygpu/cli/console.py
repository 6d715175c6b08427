"""The console of a run: a live table on a terminal or in a notebook, or plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

PLAIN_INTERVAL_S = 5.0
DRAW_INTERVAL_S = 1.0
"""Seconds between two tables of a notebook."""
ALIVE_S = 60.0
"""Seconds between two lines with the same content."""
in_command = ContextVar("in_command", default=False)
"""Whether a command line runs, which prints its faults, or a person's Python."""


class LiveConsole:
    """A live table on a terminal or in a notebook; elsewhere plain lines, when there is something new.

    Prints to standard output, or with `json` to standard error, where standard output is for the summary.
    """

    def __init__(self, *, json: bool = False, stream: TextIO | None = None) -> None:
        self._in_notebook = stream is None and Console().is_jupyter
        self.console = Console(
            file=stream, stderr=json and stream is None, highlight=False, soft_wrap=True, force_jupyter=False
        )
        self._live: Live | None = None
        self._cell: Any = None
        """Handle of the table below a notebook's cell; None elsewhere."""
        self._drawn = 0.0
        self._last_line = 0.0
        self._last_text: str | None = None
        self._last_said = 0.0
        self._trouble: str | None = None

    def line(self, text: str) -> None:
        """Print a line."""
        self.console.print(escape(text))

    def lines(self, texts: Sequence[str]) -> None:
        """Print several lines."""
        for text in texts:
            self.line(text)

    def _begin(self, table: Table) -> None:
        self._last_line = time.monotonic()
        if self._in_notebook:
            from IPython.display import display

            self._cell = display(table, display_id=True)
        elif self.console.is_terminal:
            self._live = Live(table, console=self.console, refresh_per_second=2, transient=False)
            self._live.start(refresh=True)

    def _show(self, table: Callable[[], Table], text: Callable[[], str], trouble: str | None) -> None:
        """Update the table, or print a line every few seconds. trouble: why nothing reaches MLflow at present."""
        if trouble is not None and trouble != self._trouble:
            self.line(f"{trouble} Work goes on; what waits for MLflow is kept in the run's folder.")
        self._trouble = trouble
        if self._live is not None:
            self._live.update(table())
        elif self._cell is not None:
            if time.monotonic() - self._drawn >= DRAW_INTERVAL_S:
                self._cell.update(table())
                self._drawn = time.monotonic()
        elif time.monotonic() - self._last_line >= PLAIN_INTERVAL_S:
            self._plain(text())

    def _end(self, table: Callable[[], Table], text: Callable[[], str]) -> None:
        """Leave the last state on the screen."""
        if self._live is not None:
            self._live.update(table())
            self._live.stop()
            self._live = None
        elif self._cell is not None:
            self._cell.update(table())
            self._cell = None
        else:
            self._plain(text())

    def _plain(self, text: str) -> None:
        now = self._last_line = time.monotonic()
        said, _, _ = text.rpartition(" | ")  # the time alone is nothing new, but for a sign of life
        if said != self._last_text or now - self._last_said >= ALIVE_S:
            self._last_text, self._last_said = said, now
            self.line(text)


def bar(part: float) -> Text:
    """Return a bar for the part of the whole that is done."""
    filled = round(30 * part)
    return Text("━" * filled, style="green") + Text("━" * (30 - filled), style="grey37")


def print_faults(lines: Sequence[str]) -> None:
    """Print each fault on a line of its own, on standard error."""
    for text in lines:
        print(f"raygpu: {text}", file=sys.stderr)
