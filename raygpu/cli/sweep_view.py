"""The view of a sweep: its live table or plain lines, and at its end the best trials and the Pareto front."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from rich.table import Table
from rich.text import Text

from raygpu.cli.bars import bar, curve, labelled
from raygpu.cli.console import LiveConsole
from raygpu.cli.formatting import aligned, counted, cut, duration, hyperparameters, left, score_text, throughput, value
from raygpu.cli.set_view import progress, table
from raygpu.records.device import Device
from raygpu.records.set_records import SetRecord
from raygpu.records.snapshot import Leader, Snapshot
from raygpu.search.trial_record import TrialRecord

CURVE = 12
"""Characters of a trial's curve."""
SHARE = 8
"""Characters of a GPU's bar."""
OTHER_ROWS = 9
"""Largest number of the table's rows beside those of GPUs, and of the lines around the table."""
MOST_OF_FRONT = 12
"""Largest number of trials of a Pareto front that are listed."""
Readings = Mapping[int, Mapping[str, float]]
"""NVML's readings by name, by the GPU's index."""


class SweepConsole(LiveConsole):
    """The console of a sweep."""

    def __init__(self, *, json: bool = False, stream: TextIO | None = None) -> None:
        super().__init__(json=json, stream=stream)
        self.devices: Sequence[Device] = ()
        self._alone: Mapping[int, float] = {}
        self._synthetic = False
        self._readings: Readings = {}
        """The last readings."""

    def start(
        self,
        devices: Sequence[Device],
        snapshot: Callable[[], Snapshot],
        *,
        synthetic: bool = False,
        alone: Mapping[int, float] | None = None,
    ) -> None:
        """Begin the live table; plain lines when this is not a terminal.

        synthetic: the scores are of made-up data. alone: samples/s of one training at a time, by the index of a GPU on
        which it was measured.
        """
        self.devices, self._synthetic, self._alone = devices, synthetic, alone or {}
        self._begin(self._table(snapshot(), {}))

    def update(self, snapshot: Snapshot, readings: Readings | None = None, trouble: str | None = None) -> None:
        """Show the state. readings: NVML's. trouble: why nothing reaches MLflow at present."""
        self._readings = gpu_readings = readings or {}
        self._show(lambda: self._table(snapshot, gpu_readings), lambda: self._text(snapshot, gpu_readings), trouble)

    def stop(self, snapshot: Snapshot) -> None:
        """Leave the last state on the screen."""
        self._end(lambda: self._table(snapshot, self._readings), lambda: self._text(snapshot, self._readings))

    def _text(self, s: Snapshot, readings: Readings) -> str:
        return plain(s, self.devices, readings, self._alone, synthetic=self._synthetic)

    def _table(self, s: Snapshot, readings: Readings) -> Table:
        done = bar(s.ended / s.num_trials, blocks=self.has_blocks) + Text(f" {s.ended}/{s.num_trials}")
        red = "bold red"
        counts = Text.assemble(
            f"{_running(s)}  {s.finished} finished  {s.stopped} stopped early  ",
            (f"{s.diverged} diverged  " if s.diverged else "", red),
            (f"{s.failed} failed", red if s.failed else ""),
        )
        leaders: list[Text | str] = [*self._leaders(s.leaders)]
        if leaders and self._synthetic:
            leaders.append("on synthetic data: these scores mean nothing")
        return labelled(
            [
                ("trials", done),
                ("", counts),
                *(("" if number else "best", row) for number, row in enumerate(leaders)),
                *self._gpus(s, readings),
                ("time", _time(s)),
            ],
            self.console.width,
        )

    def _leaders(self, leaders: Sequence[Leader]) -> list[Text]:
        """Return a row for each of the best trials: score, curve, id, epoch, hyper-parameters."""
        cells = []
        for leader in leaders:
            record = leader.record
            if leader.of_set is not None:
                first = leaders[0].of_set or leader.of_set
                cells.append(self._of_set(leader, leader.of_set, first.error))
                continue
            drawn = curve(leader.curve, CURVE, blocks=self.has_blocks)
            epoch = "" if record.score_epoch is None else f"epoch {record.score_epoch}"
            runs = "" if record.ended else ", runs"
            cells.append([f"{record.score:.6g}", drawn, record.trial.trial_id, f"{epoch}{runs}"])
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        rows = []
        for number, (leader, row) in enumerate(zip(leaders, cells, strict=True)):
            score, drawn, name, epoch = (text.ljust(width) for text, width in zip(row, widths, strict=True))
            hp = hyperparameters(leader.record.values)
            style = "" if number else "bold green"
            rows.append(Text.assemble((score, style), (f"  {drawn}", "cyan"), f"  {name}  {epoch}  {hp}"))
        return rows

    def _of_set(self, leader: Leader, of_set: SetRecord, like: float | None) -> list[str]:
        """Return the cells of a set: mean score, the curve of its best repeat, id, number of repeats.

        like: standard error of the first set, by which all scores have as many digits.
        """
        assert of_set.mean is not None
        drawn = curve(leader.curve, CURVE, blocks=self.has_blocks)
        runs = ", runs" if of_set.runs else ""
        return [score_text(of_set.mean, of_set.error, like), drawn, of_set.set_id, f"{progress(of_set)}{runs}"]

    def _gpus(self, s: Snapshot, readings: Readings) -> list[tuple[str, Text]]:
        """Return a row for each GPU, of as many as the terminal has lines for; one more sums up the others."""
        most = max(2, self.console.height - OTHER_ROWS)
        shown = self.devices if len(self.devices) <= most else self.devices[: most - 1]
        rows = [(f"gpu {device.index}", self._gpu(s, device, readings)) for device in shown]
        if rest := self.devices[len(shown) :]:
            mean_share = sum(s.held.get(device.index, 0.0) for device in rest) / len(rest)
            rates = [rate for device in rest if (rate := s.samples_per_s.get(device.index)) is not None]
            total = f"  {throughput(sum(rates))}" if rates else ""
            rows.append(("others", self._share(mean_share) + Text(f"  {len(rest)} more GPUs{total}")))
        return rows

    def _gpu(self, s: Snapshot, device: Device, readings: Readings) -> Text:
        facts = gpu_facts(s, device, readings, self._alone)
        room = self.console.width - len("trials") - 2 - SHARE - len(" 100 %")
        if sum(len(fact) + 2 for fact in facts) > room:
            facts = [fact.replace(" of one at a time", " of one") for fact in facts]
        name = Text(f"  {device.name}", style="dim")
        return self._share(s.held.get(device.index, 0.0)) + Text("".join(f"  {fact}" for fact in facts)) + name

    def _share(self, held: float) -> Text:
        return bar(held, SHARE, blocks=self.has_blocks) + Text(f" {held:4.0%}".replace("%", " %"))

    def best_sets(self, metric: str, score_rule: str, sets: Sequence[SetRecord]) -> None:
        """Print the best sets in columns, one line each. score_rule: epoch of the scores, last or best."""
        self._print_columns(table(metric, score_rule, sets))

    def best(self, metric: str, records: Sequence[TrialRecord]) -> None:
        """Print the best trials in columns, one line each; cut at a terminal's width, and nowhere else.

        The header names the epoch of the scores, the last or the best.
        """
        names = list(dict.fromkeys(name for record in records for name in record.trial.hyperparameters))
        rows = [["trial", f"{metric} ({records[0].score_rule} epoch)", "best epoch", "epochs", *names]]
        for r in records:
            values = (value(r.values.get(name)) for name in names)
            score = "diverged" if r.diverged else f"{r.score:.6g}"
            epoch = "" if r.best_epoch is None else str(r.best_epoch)
            rows.append([r.trial.trial_id, score, epoch, str(r.epochs), *values])
        self._print_columns(rows)

    def _print_columns(self, rows: Sequence[Sequence[str]]) -> None:
        """Print the rows of a table in columns: the first one to the left, the others to the right."""
        for line in aligned(rows, named=True):
            self.result(cut(line, self.console.width) if self.console.is_terminal else line)

    def front(self, summary: Mapping[str, Any]) -> None:
        """Print the Pareto front; nothing with a single metric. summary: content of `summary.json`."""
        width = self.console.width if self.console.is_terminal else None
        self.results(front_lines(summary.get("metrics", []), summary.get("front", []), width))


def front_lines(
    metrics: Sequence[Mapping[str, str]], front: Sequence[Mapping[str, Any]], width: int | None
) -> list[str]:
    """Return the lines after the table of the best trials; empty with a single metric.

    metrics: name and direction of each, as the summary has them. front: its trials, as the summary has them. width: of
    the terminal; None for no end.
    """
    if not metrics:
        return []
    goals = ", ".join(f"{goal['direction']} {goal['metric']}" for goal in metrics)
    if not front:
        return [f"no trial has a finite value of each metric ({goals}), so there is no Pareto front"]
    names = list(dict.fromkeys(name for row in front for name in row["hyperparameters"]))
    rows = [["trial", *(goal["metric"] for goal in metrics), *names]]
    for row in front[:MOST_OF_FRONT]:
        values = [f"{number:.6g}" for number in row["values"]]
        rows.append([row["trial_id"], *values, *(value(row["hyperparameters"].get(name)) for name in names)])
    lines = [
        f"Pareto front of {goals}: {counted(len(front), 'trial')}",
        *(line[:width] for line in aligned(rows, named=True)),
    ]
    if len(front) > MOST_OF_FRONT:
        lines.append(f"and {len(front) - MOST_OF_FRONT} more, in summary.json")
    return lines


def gpu_facts(s: Snapshot, device: Device, readings: Readings, alone: Mapping[int, float]) -> list[str]:
    """Return what is known of a GPU beside its share, each as text: memory, throughput, throughput over that of one
    training at a time. alone: samples/s of one at a time, by GPU."""
    facts = []
    used = readings.get(device.index, {}).get("memory_gib")
    if used is not None:
        facts.append(f"{used:.1f} GiB" if device.memory_gib is None else f"{used:.1f}/{device.memory_gib:.1f} GiB")
    rate, one = s.samples_per_s.get(device.index), alone.get(device.index)
    if rate is not None:
        facts.append(throughput(rate))
        if one:
            facts.append(f"{rate / one:.1f}x of one at a time")
    return facts


def plain(
    s: Snapshot,
    devices: Sequence[Device] = (),
    readings: Readings | None = None,
    alone: Mapping[int, float] | None = None,
    *,
    synthetic: bool = False,
) -> str:
    """Return the snapshot as one line. readings: NVML's. alone: samples/s of one training at a time, by GPU. synthetic:
    the scores are of made-up data."""
    best = "best on synthetic data" if synthetic else "best"
    parts = [f"{s.ended}/{s.num_trials} trials", _running(s)]
    parts += [f"{s.stopped} stopped early"] if s.stopped else []
    parts += [f"{s.diverged} diverged"] if s.diverged else []
    parts += [f"{s.failed} failed"] if s.failed else []
    parts += [f"{best} {_best(s.leaders[0].of_set if s.leaders else None, s.best)}"] if s.best is not None else []
    for device in devices:
        if facts := gpu_facts(s, device, readings or {}, alone or {}):
            parts.append(f"gpu {device.index}: {s.held.get(device.index, 0.0):.0%} held, {', '.join(facts)}")
    parts.append(_time(s))
    return " | ".join(parts)


def _running(s: Snapshot) -> str:
    """Return how many trials run, with the reason where none has begun yet: that takes a busy machine minutes."""
    waits = s.running == 0 and s.ended == 0
    return f"{s.running} running" + (" (the first workers start)" if waits else "")


def _time(s: Snapshot) -> str:
    """Return the time that has passed and the time left; of a sweep that has ended before its trials, that it has."""
    ended_early = s.time_left_s == 0 and s.ended < s.num_trials
    return f"{duration(s.elapsed_s)}, {'ended before all trials had' if ended_early else left(s.time_left_s)}"


def _best(of_set: SetRecord | None, record: TrialRecord) -> str:
    """Return the best score so far with what has it: a set with its number of repeats, or a trial."""
    if of_set is None or of_set.mean is None:
        return f"{record.score:.6g} ({at_epoch(record)})"
    return f"{score_text(of_set.mean, of_set.error)} ({of_set.set_id}, {progress(of_set)} repeats)"


def at_epoch(record: TrialRecord) -> str:
    """Return a trial's id and the epoch of its score, as text; a running trial may still replace its score."""
    epoch = "" if record.score_epoch is None else f" at epoch {record.score_epoch}"
    return f"{record.trial.trial_id}{epoch}{'' if record.ended else ', which goes on'}"
