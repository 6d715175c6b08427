"""The console of a run: a live table on a terminal or in a notebook, or plain lines elsewhere.

With -q it prints warnings and results alone, with -v details too, each line with the seconds since the command began.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Literal, TextIO

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from raygpu.cli.formatting import cut
from raygpu.errors import one_line
from raygpu.records.clock import command_age_s
from raygpu.records.output import send_to_null

PLAIN_INTERVAL_S = 5.0
DRAW_INTERVAL_S = 1.0
"""Seconds between two tables of a notebook."""
ALIVE_S = 60.0
"""Seconds between two lines with the same content."""
in_command = ContextVar("in_command", default=False)
"""Whether a command line runs, which prints its faults, or a person's Python."""
Detail = Literal["quiet", "normal", "verbose"]
shown_detail: ContextVar[Detail] = ContextVar("shown_detail", default="normal")
"""Amount that a command prints: -q and -v set it."""


class _Console(Console):
    """A console of rich that goes on without a word once the reader of its stream has left: rich ends the process."""

    def on_broken_pipe(self) -> None:
        """Send all further output to /dev/null."""
        send_to_null(self.file.fileno())


class LiveConsole:
    """A live table on a terminal or in a notebook; elsewhere plain lines, when there is something new.

    Prints to standard output, or with `json` to standard error, where standard output is for the summary.
    """

    def __init__(self, *, json: bool = False, stream: TextIO | None = None) -> None:
        self._in_notebook = stream is None and Console().is_jupyter
        self._detail = shown_detail.get()
        out = stream or (sys.stderr if json else sys.stdout)
        # A file or a pipe gets no escape codes, whatever FORCE_COLOR says: a log is read later, by other programs.
        self.console = _Console(
            file=stream,
            stderr=json and stream is None,
            highlight=False,
            force_jupyter=False,
            force_terminal=None if out.isatty() else False,
        )
        self.has_blocks = _takes(out, "▁█━…")
        """Whether the stream's encoding has the characters of bars and curves."""
        if not self.has_blocks and isinstance(out, io.TextIOWrapper):
            with suppress(OSError, ValueError):
                out.reconfigure(errors="replace")
        self._live: Live | None = None
        self._cell: Any = None
        """Handle of the table below a notebook's cell; None elsewhere."""
        self._has_failed = False
        """Whether the state could not be shown, so that it is shown no more."""
        self._drawn = 0.0
        self._last_line = 0.0
        self._last_text: str | None = None
        self._last_said = 0.0
        self._trouble: str | None = None

    @property
    def is_verbose(self) -> bool:
        """Whether details are printed."""
        return self._detail == "verbose"

    def line(self, text: str) -> None:
        """Print a line on the progress; not with -q."""
        if self._detail != "quiet":
            self._print(text)

    def lines(self, texts: Sequence[str]) -> None:
        """Print several lines on the progress."""
        for text in texts:
            self.line(text)

    def detail(self, text: str) -> None:
        """Print a line with -v alone."""
        if self.is_verbose:
            self._print(text)

    def details(self, texts: Sequence[str]) -> None:
        """Print several lines with -v alone."""
        for text in texts:
            self.detail(text)

    def warn(self, text: str) -> None:
        """Print a line that is printed with -q, too."""
        self._print(text)

    def warnings(self, texts: Sequence[str]) -> None:
        """Print several lines that are printed with -q, too."""
        for text in texts:
            self.warn(text)

    def results(self, texts: Sequence[str]) -> None:
        """Print the lines of a result, with -q too; never with the time, for tables stay aligned."""
        for text in texts:
            self.console.print(escape(text), soft_wrap=True)

    def result(self, text: str) -> None:
        """Print a line of a result."""
        self.results([text])

    def _print(self, text: str) -> None:
        moment = f"[{command_age_s():7.1f} s] " if self.is_verbose and text else ""
        self.console.print(escape(moment + text), soft_wrap=True)

    @property
    def _is_live(self) -> bool:
        """Whether the stream is a terminal that can move its cursor."""
        return self.console.is_terminal and not self.console.is_dumb_terminal

    def _begin(self, table: Table) -> None:
        self._last_line = time.monotonic()
        if self._detail == "quiet":
            return
        if self._in_notebook:
            from IPython.display import display

            self._cell = display(table, display_id=True)
        elif self._is_live:
            self._live = Live(table, console=self.console, refresh_per_second=2, transient=False)
            self._live.start(refresh=True)

    def _show(self, table: Callable[[], Table], text: Callable[[], str], trouble: str | None) -> None:
        """Update the table, or print a line every few seconds. trouble: why nothing reaches MLflow at present."""
        if trouble is not None and trouble != self._trouble:
            self.warn(f"{trouble} Work goes on; what waits for MLflow is kept in the run's folder.")
        self._trouble = trouble
        if self._detail == "quiet" or self._has_failed:
            return
        with self._drawing():
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
        if self._detail == "quiet" or self._has_failed:
            return
        with self._drawing():
            if self._live is not None:
                self._live.update(table())
                self._live.stop()
                self._live = None
            elif self._cell is not None:
                self._cell.update(table())
                self._cell = None
            else:
                self._plain(text())

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        """Go on without the view if the state cannot be shown: no result depends on it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - any fault of a table's content
            self._has_failed = True
            if self._live is not None:
                self._live.stop()
            self._live = self._cell = None
            self.warn(f"the state is shown no more, and the work goes on: {one_line(error)}")

    def _plain(self, text: str) -> None:
        now = self._last_line = time.monotonic()
        said, _, _ = text.rpartition(" | ")  # the time alone is nothing new, but for a sign of life
        if said != self._last_text or now - self._last_said >= ALIVE_S:
            self._last_text, self._last_said = said, now
            self.line(_fitting(text, self.console.width) if self.console.is_terminal else text)


def _fitting(text: str, width: int) -> str:
    """Return a line of parts, cut to a terminal's width; the last part, the time, is kept."""
    first, bar, last = text.rpartition(" | ")
    return (
        f"{cut(first, width - len(bar + last))}{bar}{last}" if len(text) > width > len(bar + last) else cut(text, width)
    )


def _takes(out: TextIO, characters: str) -> bool:
    """Return whether a stream's encoding has these characters."""
    try:
        characters.encode(getattr(out, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def print_faults(lines: Sequence[str]) -> None:
    """Print each fault on a line of its own, on standard error."""
    for text in lines:
        print(f"raygpu: {text}", file=sys.stderr)
