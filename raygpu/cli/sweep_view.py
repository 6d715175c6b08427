"""The view of a sweep: its live table or plain lines, and the five best trials at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TextIO

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from raygpu.cli.console import LiveConsole, bar
from raygpu.cli.formatting import duration, hyperparameters, left, throughput, value
from raygpu.records.trial_records import Device, Snapshot
from raygpu.search.trials import TrialRecord


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
