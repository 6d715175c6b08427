"""The view of a production training: shares and speeds of its devices, latest metrics, time left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TextIO

from rich.table import Table
from rich.text import Text

from raygpu.cli.bars import bar, curve, labelled
from raygpu.cli.console import LiveConsole
from raygpu.cli.formatting import counted, duration, hyperparameters, left, throughput
from raygpu.config import TrainConfig
from raygpu.planning.noise_scale import NoiseScale
from raygpu.records.best_trial import unlike_trial
from raygpu.records.device import Device
from raygpu.records.score_on_test import ScoreOnTest
from raygpu.records.training_progress import History

CURVE = 24
"""Characters of the metric's curve."""
SHARE = 8
"""Characters of a GPU's bar."""
UNITS = {"util_pct": "{:.0f} %", "power_w": "{:.0f} W", "temperature_c": "{:.0f} °C"}
"""Formats of the NVML readings in the table, beside the memory."""
Readings = Mapping[int, Mapping[str, float]]
"""NVML's readings by name, by the GPU's index."""


class TrainConsole(LiveConsole):
    """The console of a production training."""

    def __init__(self, *, json: bool = False, stream: TextIO | None = None) -> None:
        super().__init__(json=json, stream=stream)
        self._metric, self._best, self._synthetic = "", "best checkpoint", False
        self._readings: Readings = {}
        """The last readings."""

    def start(self, history: History, *, synthetic: bool = False) -> None:
        """Begin the live table; plain lines when this is not a terminal. synthetic: the scores are of made-up data."""
        self._metric = history.scoring.metric
        self._best = "best checkpoint, on synthetic data" if synthetic else "best checkpoint"
        self._synthetic = synthetic
        self._begin(self._table(history, {}))

    def update(self, history: History, readings: Readings, trouble: str | None = None) -> None:
        """Show the state. readings: NVML's, by device index. trouble: why nothing reaches MLflow at present."""
        self._readings = readings
        self._show(lambda: self._table(history, readings), lambda: self._text(history), trouble)

    def stop(self, history: History) -> None:
        """Leave the last state on the screen."""
        self._end(lambda: self._table(history, self._readings), lambda: self._text(history))

    def _table(self, h: History, readings: Readings) -> Table:
        rows: list[tuple[str, Text | str]] = []
        last = h.last
        inner = last.step / last.steps if last is not None and last.result is None else 0.0
        progress = bar((h.epoch + inner) / h.epochs, blocks=self.has_blocks)
        step = f"  step {last.step} of {last.steps}" if last is not None and last.result is None else ""
        rows.append(("epochs", progress + Text(f" {h.epoch}/{h.epochs}{step}")))
        curve_of = next((name for name in (self._metric, f"validation/{self._metric}") if name in h.metrics), None)
        for name, value in h.metrics.items():
            drawn = curve(h.curve(), CURVE, blocks=self.has_blocks) if name == curve_of else ""
            rows.append((name, Text(f"{value:.6g}") + Text(f"  {drawn}", style="cyan")))
        if h.best is not None:
            made_up = ", on synthetic data" if self._synthetic else ""
            whence = f"  checkpoint of epoch {h.best.epoch}{made_up}"
            rows.append(("best", Text.assemble((f"{h.best.score:.6g}", "bold green"), whence)))
        if last is not None:
            if last.lr is not None:
                rows.append(("learning rate", f"{last.lr:.4g}"))
            for rank, row in enumerate(self._ranks(h, readings)):
                rows.append((f"rank {rank}", self._memory(h, rank, readings) + Text("  ".join(row))))
            if together := _together(h):
                rows.append(("together", "  ".join(together)))
        rows.append(("time", f"{duration(h.elapsed_s)}, {left(h.time_left_s)}"))
        return labelled(rows, self.console.width)

    def _memory(self, h: History, rank: int, readings: Readings) -> Text:
        """Return a bar for how full the memory of a rank's GPU is; empty where that is not known."""
        device = h.devices[h.device_of[rank]]
        used = readings.get(device.index, {}).get("memory_gib")
        if used is None or not device.memory_gib:
            return Text("")
        return bar(used / device.memory_gib, SHARE, blocks=self.has_blocks) + Text("  ")

    def _ranks(self, h: History, readings: Readings) -> list[list[str]]:
        last = h.last
        assert last is not None
        rows = []
        for rank, index in sorted(h.device_of.items()):
            device = h.devices[index]
            device_readings = dict(readings.get(device.index, {}))
            row = []
            if (used := device_readings.pop("memory_gib", None)) is not None:
                total = "" if device.memory_gib is None else f"/{device.memory_gib:.1f}"
                row.append(f"{used:.1f}{total} GiB")
            if rank < len(last.samples):
                row.append(throughput(last.samples[rank] / last.wall_s))
                row.append(f"{last.shares[rank]} of {sum(last.shares)}")
            row += [form.format(device_readings[name]) for name, form in UNITS.items() if name in device_readings]
            rows.append([*row, _name(device, h.devices)])
        return rows

    def _text(self, h: History) -> str:
        parts = [f"epoch {h.epoch}/{h.epochs}"]
        if h.last is not None and h.last.result is None:
            parts.append(f"step {h.last.step}/{h.last.steps}")
        parts += [f"{name} {value:.4g}" for name, value in h.metrics.items()]
        parts += [f"{self._best} {self._metric} {h.best.score:.6g} (epoch {h.best.epoch})"] if h.best else []
        if h.last is not None:
            parts += [", ".join(together)] if (together := _together(h)) else []
            if len(h.last.shares) > 1:
                parts.append(f"shares {' + '.join(map(str, h.last.shares))}")
        parts.append(f"{duration(h.elapsed_s)}, {left(h.time_left_s)}")
        return " | ".join(parts)


def beginning(config: TrainConfig, *, simulated: bool) -> list[str]:
    """Return lines on the training that begins. simulated: whether it runs on one simulated GPU."""
    length = f", {counted(config.epochs, 'epoch')}" if config.epochs else ""
    direction = "highest" if config.maximize else "lowest"
    description = f"{config.code_name}{length}; {hyperparameters(config.hyperparameters)}"
    lines = [f"train {config.name}: {description}; {direction} {config.metric} wins"]
    if {"trial_id", "sweep"} <= config.source.keys():
        lines.append(f"from trial {config.source['trial_id']} of sweep {config.source['sweep']}{_trial_score(config)}")
        if ended := config.source.get("ended"):
            lines.append(f"that trial was {ended}: what it would have reached by its last epoch is not known")
    if config.data.synthetic:
        lines.append("data: synthetic, made up to measure speed; the scores mean nothing")
    if simulated:
        lines.append("no NVIDIA GPU here: the training runs on one simulated GPU, the CPU")
    return lines


def _trial_score(config: TrainConfig) -> str:
    """Return the score of the trial that a training comes from, by the metric of its sweep; empty without one."""
    source = config.source
    if "score" not in source:
        return ""
    folds = f" over {source['folds']} folds" if source.get("folds") else ""
    return f", {source.get('metric', config.metric)} {source['score']:.6g}{folds}"


def ending(config: TrainConfig, history: History, batch: int | None, on_test: ScoreOnTest | None = None) -> list[str]:
    """Return lines on the training's result. batch: samples of a step; None if they are not known. on_test: score on
    the test data; None without any."""
    lines, best, last = [], history.best, history.last
    if history.diverged:
        whose = "the training loss" if last is not None and last.samples else "a loss or the metric"
        lines.append(f"diverged: {whose} of epoch {history.epoch} is not finite")
    if history.ended_by_itself:
        lines.append(f"the function ended by itself after {history.epoch} of {history.epochs} epochs")
    if best is not None:
        trial = config.source.get("score") if unlike_trial(config) is None else None
        ended = f", {config.source['ended']}" if config.source.get("ended") else ""
        compared = f"; the trial's was {trial:.6g}{ended}" if trial is not None else ""
        lines.append(f"{config.metric} {best.score:.6g} after epoch {best.epoch}{compared}")
        if on_test is not None:
            lines.append(on_test.line(config.metric, "the training"))
        if config.data.synthetic:
            lines.append("on synthetic data: these scores mean nothing")
    if last is not None and last.noise is not None and batch is not None:
        lines.append(noise_line(last.noise, batch))
    return lines


def epoch_line(history: History) -> str:
    """Return a line on the epoch that has just ended, for details."""
    metrics = ", ".join(f"{name} {value:.6g}" for name, value in history.metrics.items())
    return f"epoch {history.epoch} of {history.epochs} ended: {metrics}"


def checkpoint_line(epoch: int, step: int, score: float | None, *, best: bool) -> str:
    """Return a line on a checkpoint that was saved, for details."""
    score_note = f" with {score:.6g}" if score is not None else ""
    return f"checkpoint of epoch {epoch}, step {step}, saved{score_note}{', the best so far' if best else ''}"


def noise_line(noise: NoiseScale, batch: int) -> str:
    """Compare the batch with the gradient noise scale, in a line. batch: samples of a step."""
    scale = f"the gradient noise scale is {noise.samples:,.0f} samples ({noise.low:,.0f} to {noise.high:,.0f})"
    if batch > noise.high:
        return f"{scale}: a batch of {batch} is past it, and a larger one would hardly take fewer steps"
    if batch < noise.low:
        return f"{scale}: a batch of {batch} is below it, and a larger one would take fewer steps"
    return f"{scale}, about the batch of {batch}: a much larger one would hardly take fewer steps"


def _name(device: Device, devices: Sequence[Device]) -> str:
    return f"gpu {device.index} {device.name}" if len(devices) > 1 or device.uuid else device.name


def _together(h: History) -> list[str]:
    last = h.last
    assert last is not None
    facts = [throughput(last.samples_per_s)] if last.samples_per_s is not None else []
    if last.efficiency is not None and len(last.shares) > 1:
        facts.append(f"{last.efficiency:.0%} of the devices alone")
    if last.noise is not None:
        facts.append(f"noise scale {last.noise.samples:,.0f} ({last.noise.low:,.0f} to {last.noise.high:,.0f})")
    return facts
