"""The view of a run: a live table or plain lines; of a sweep, the five best trials at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from raygpu.records.trial_records import Device, Snapshot
from raygpu.search.trials import TrialRecord

PLAIN_INTERVAL_S = 5.0
ALIVE_S = 60.0
"""Seconds between two lines with the same content."""
LONGEST_VALUE = 24
"""Largest number of characters of a hyper-parameter in a line."""


class LiveConsole:
    """A live table on a terminal; elsewhere plain lines, when there is something new.

    Prints to standard output, or with `json` to standard error, where standard output is for the summary.
    """

    def __init__(self, *, json: bool = False, stream: TextIO | None = None) -> None:
        self.console = Console(file=stream, stderr=json and stream is None, highlight=False, soft_wrap=True)
        self._live: Live | None = None
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
        if self.console.is_terminal:
            self._live = Live(table, console=self.console, refresh_per_second=2, transient=False)
            self._live.start(refresh=True)

    def _show(self, table: Callable[[], Table], text: Callable[[], str], trouble: str | None) -> None:
        """Update the table, or print a line every few seconds. trouble: why nothing reaches MLflow at present."""
        if trouble is not None and trouble != self._trouble:
            self.line(f"{trouble} Work goes on; what waits for MLflow is kept in the run's folder.")
        self._trouble = trouble
        if self._live is not None:
            self._live.update(table())
        elif time.monotonic() - self._last_line >= PLAIN_INTERVAL_S:
            self._plain(text())

    def _end(self, table: Callable[[], Table], text: Callable[[], str]) -> None:
        """Leave the last state on the screen."""
        if self._live is not None:
            self._live.update(table())
            self._live.stop()
            self._live = None
        else:
            self._plain(text())

    def _plain(self, text: str) -> None:
        now = self._last_line = time.monotonic()
        said, _, _ = text.rpartition(" | ")  # the time alone is nothing new, but for a sign of life
        if said != self._last_text or now - self._last_said >= ALIVE_S:
            self._last_text, self._last_said = said, now
            self.line(text)


class SweepConsole(LiveConsole):
    """The console of a sweep."""

    def __init__(self, *, json: bool = False, stream: TextIO | None = None) -> None:
        super().__init__(json=json, stream=stream)
        self.devices: Sequence[Device] = ()
        self._best = "best"

    def start(self, devices: Sequence[Device], snapshot: Callable[[], Snapshot], *, synthetic: bool = False) -> None:
        """Begin the live table; plain lines when this is not a terminal. synthetic: the scores are of made-up data."""
        self.devices = devices
        self._best = "best on synthetic data" if synthetic else "best"
        self._begin(self._table(snapshot()))

    def update(self, snapshot: Snapshot, trouble: str | None = None) -> None:
        """Show the state. trouble: why nothing reaches MLflow at present."""
        self._show(lambda: self._table(snapshot), lambda: plain(snapshot, self._best), trouble)

    def stop(self, snapshot: Snapshot) -> None:
        """Leave the last state on the screen."""
        self._end(lambda: self._table(snapshot), lambda: plain(snapshot, self._best))

    def _table(self, s: Snapshot) -> Table:
        outer = Table.grid(padding=(0, 2))
        outer.add_column(style="dim", justify="right")
        outer.add_column()
        outer.add_row("trials", bar(s.ended / s.num_trials) + Text(f" {s.ended}/{s.num_trials}"))
        counts = Text(f"{s.running} running   {s.finished} finished   {s.stopped} stopped early   ")
        diverged = Text(f"{s.diverged} diverged   " if s.diverged else "", style="bold red")
        outer.add_row("", counts + diverged + Text(f"{s.failed} failed", style="bold red" if s.failed else ""))
        if s.best is not None:
            score, of = Text(f"{s.best.score:.6g}", style="bold green"), Text(f"  {at_epoch(s.best)}")
            outer.add_row(self._best, score + of + Text(f"  {hyperparameters(s.best.trial.hyperparameters)}"))
        for device in self.devices:
            rate = s.samples_per_s.get(device.index)
            outer.add_row(f"gpu {device.index}", f"{escape(device.name)}   {'' if rate is None else throughput(rate)}")
        outer.add_row("time", f"{duration(s.elapsed_s)}, {left(s.time_left_s)}")
        return outer

    def best(self, metric: str, records: Sequence[TrialRecord]) -> None:
        """Print the best trials in columns, one line each; lines wider than the terminal wrap and are not cut.

        The header names the epoch of the scores, the last or the best.
        """
        names = list(dict.fromkeys(name for record in records for name in record.trial.hyperparameters))
        rows = [["trial", f"{metric} ({records[0].which} epoch)", "best epoch", "epochs", *names]]
        for r in records:
            values = (value(r.trial.hyperparameters.get(name)) for name in names)
            score = "diverged" if r.diverged else f"{r.score:.6g}"
            epoch = "" if r.best_epoch is None else str(r.best_epoch)
            rows.append([r.trial.trial_id, score, epoch, str(r.epochs), *values])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for first, *others in rows:
            cells = [text.rjust(width) for text, width in zip(others, widths[1:], strict=True)]
            self.line("  ".join([first.ljust(widths[0]), *cells]))


def bar(part: float) -> Text:
    """Return a bar for the part of the whole that is done."""
    filled = round(30 * part)
    return Text("━" * filled, style="green") + Text("━" * (30 - filled), style="grey37")


def plain(s: Snapshot, best: str = "best") -> str:
    """Return the snapshot as one line. best: label of the best score."""
    parts = [f"{s.ended}/{s.num_trials} trials", f"{s.running} running"]
    parts += [f"{s.stopped} stopped early"] if s.stopped else []
    parts += [f"{s.diverged} diverged"] if s.diverged else []
    parts += [f"{s.failed} failed"] if s.failed else []
    parts += [f"{best} {s.best.score:.6g} ({at_epoch(s.best)})"] if s.best is not None else []
    parts += [f"gpu {index}: {throughput(rate)}" for index, rate in s.samples_per_s.items() if rate is not None]
    parts += [f"{duration(s.elapsed_s)}, {left(s.time_left_s)}"]
    return " | ".join(parts)


def at_epoch(record: TrialRecord) -> str:
    """Return a trial's id and the epoch of its score, as text; a running trial may still replace its score."""
    epoch = "" if record.score_epoch is None else f" at epoch {record.score_epoch}"
    return f"{record.trial.trial_id}{epoch}{'' if record.ended else ', which goes on'}"


def hyperparameters(hp: Mapping[str, Any]) -> str:
    """Return hyper-parameters as text, `lr=0.1 hidden=64`."""
    return " ".join(f"{name}={value(v)}" for name, v in hp.items())


def value(v: Any) -> str:
    """Return a hyper-parameter as short text."""
    if isinstance(v, float):
        return f"{v:.4g}"
    text = "" if v is None else str(v)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}\N{HORIZONTAL ELLIPSIS}"


def throughput(rate: float) -> str:
    """Return a throughput as text, `1,234 samples/s`."""
    return f"{rate:,.0f} samples/s"


def left(seconds: float | None) -> str:
    """Return the time left as text. seconds: None if unknown."""
    if seconds is None:
        return "time left not known yet"
    return f"about {duration(seconds)} left" if seconds else "all done"


def duration(seconds: float) -> str:
    """Return a duration as text: `42 s`, `3 min 5 s`, `2 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def faults(lines: Sequence[str]) -> None:
    """Print each fault on a line of its own, on standard error."""
    for text in lines:
        print(f"raygpu: {text}", file=sys.stderr)
