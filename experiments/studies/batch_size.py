"""Batch size against speed, steps to a target, and error, the learning rate retuned at each size.

    python -m experiments.studies.batch_size                       runs conf/sweep/batch_size.toml, then draws it
    python -m experiments.studies.batch_size --run runs/batch_size draws a sweep that there is already

Leaves `batch_size.csv` and `batch_size.png` in the sweep's folder. McCandlish et al. (2018), An Empirical Model of
Large-Batch Training, predict the second curve: steps fall with the batch up to the gradient noise scale, and stay then.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

from mlflow.tracking import MlflowClient

from raygpu import sweep
from raygpu.config import SweepConfig, load
from raygpu.planning.batches import num_batches
from raygpu.records.run_directory import RunDirectory
from raygpu.search.scoring import Scoring

TARGET = 0.95


@dataclass(frozen=True, slots=True)
class Row:
    """One batch size, with the learning rate that takes the fewest steps to the target, or comes closest to it."""

    batch_size: int
    lr: float
    samples_per_s: float
    """The median of all trials of this size."""
    steps_to_target: int | None
    """Optimizer steps; None where no learning rate got there."""
    train_loss: float
    """At the last epoch, of the learning rate with the best score then."""
    validation_error: float
    """1 - score, likewise."""
    lr_at_the_end: float


@dataclass(frozen=True, slots=True)
class Trial:
    """What MLflow has of one."""

    batch_size: int
    lr: float
    scores: Sequence[float]
    """By epoch."""
    train_losses: Sequence[float]
    samples_per_s: float

    def epochs_to(self, target: float) -> int | None:
        return next((epoch for epoch, score in enumerate(self.scores, 1) if score >= target), None)


def trials(folder: RunDirectory) -> list[Trial]:
    """Of a sweep, from MLflow; those that did not diverge."""
    config, run = folder.read_config(), folder.read_run()
    client = MlflowClient(config.tracking.uri)
    parent = client.get_run(run["mlflow_run_id"])
    wanted = f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
    found = []
    for each in client.search_runs([parent.info.experiment_id], wanted, max_results=10_000):
        names, score = each.data.metrics, Scoring(config.metric, config.maximize).key
        if not all(map(math.isfinite, names.values())) or "train/loss" not in names:
            continue
        curves = {name: _curve(client, each.info.run_id, name) for name in (score(names), "train/loss")}
        size, lr = int(each.data.params["batch_size"]), float(each.data.params["lr"])
        found.append(Trial(size, lr, curves[score(names)], curves["train/loss"], names["samples_per_s"]))
    return found


def _curve(client: Any, run_id: str, name: str) -> list[float]:
    return [m.value for m in sorted(client.get_metric_history(run_id, name), key=lambda m: m.step)]


def rows(found: Sequence[Trial], num_train: int, target: float) -> list[Row]:
    """One for each batch size."""
    by_size: dict[int, list[Trial]] = {}
    for trial in found:
        by_size.setdefault(trial.batch_size, []).append(trial)
    return [_row(size, by_size[size], num_train, target) for size in sorted(by_size)]


def _row(size: int, of_size: Sequence[Trial], num_train: int, target: float) -> Row:
    best = max(of_size, key=lambda trial: trial.scores[-1])
    there = [(epochs, trial) for trial in of_size if (epochs := trial.epochs_to(target)) is not None]
    epochs, first = min(there, key=lambda pair: pair[0], default=(None, best))
    return Row(
        size,
        first.lr,
        median(trial.samples_per_s for trial in of_size),
        epochs and epochs * num_batches(num_train, size),
        best.train_losses[-1],
        1 - best.scores[-1],
        best.lr,
    )


def table(found: Sequence[Row], target: float) -> list[str]:
    head = ["batch", "lr", "samples/s", f"steps to {target:g}", "train loss", "validation error", "lr at the end"]
    lines = [head]
    for row in found:
        steps = "never" if row.steps_to_target is None else f"{row.steps_to_target:,}"
        cells = [str(row.batch_size), f"{row.lr:g}", f"{row.samples_per_s:,.0f}", steps]
        lines.append([*cells, f"{row.train_loss:.2g}", f"{row.validation_error:.1%}", f"{row.lr_at_the_end:g}"])
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]


def plot(found: Sequence[Row], target: float, title: str, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8), dpi=110, layout="constrained")
    figure.suptitle(title)
    sizes = [row.batch_size for row in found]
    there = [row for row in found if row.steps_to_target is not None]
    (speed, steps), (error, rate) = figure.subplots(2, 2)
    speed.plot(sizes, [row.samples_per_s for row in found], "o-")
    speed.set_ylabel("samples/s of a trial")
    steps.plot([row.batch_size for row in there], [row.steps_to_target for row in there], "o-", label="measured")
    if there:
        first = there[0]
        straight = [(first.steps_to_target or 0) * first.batch_size / row.batch_size for row in there]
        steps.plot(
            [row.batch_size for row in there], straight, "--", color="0.5", label="half the steps, twice the batch"
        )
        steps.legend(frameon=False)
    steps.set_yscale("log")
    steps.set_ylabel(f"optimizer steps to a score of {target:g}")
    error.plot(sizes, [100 * row.validation_error for row in found], "o-", label="validation error, %")
    losses = error.twinx()
    losses.plot(sizes, [row.train_loss for row in found], "s--", color="C1", label="training loss (right)")
    losses.set_yscale("log")
    error.set_ylim(bottom=0)
    lines = [*error.get_lines(), *losses.get_lines()]
    error.legend(lines, [str(line.get_label()) for line in lines], frameon=False)
    error.set_ylabel("at the last epoch")
    rate.plot(sizes, [row.lr for row in found], "o-", label=f"fewest steps to {target:g}")
    rate.plot(sizes, [row.lr_at_the_end for row in found], "s--", label="best at the last epoch")
    rate.set_yscale("log")
    rate.set_ylabel("learning rate")
    rate.legend(frameon=False)
    for axes in (speed, steps, error, rate):
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.set_xlabel("batch size")
        axes.grid(alpha=0.25)
        axes.spines[["top"]].set_visible(False)
    figure.savefig(path)


def study(folder: RunDirectory, num_train: int, target: float) -> list[Row]:
    """Read a sweep, and leave its table and its plot in its folder."""
    config = folder.read_config()
    found = rows(trials(folder), num_train, target)
    with (folder.path / "batch_size.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [each.name for each in fields(Row)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in found)
    plot(found, target, f"{config.experiment}, {config.epochs} epochs", folder.path / "batch_size.png")
    return found


def _num_train(config: SweepConfig) -> int:
    from raygpu.workflow.user_code import find, load_data

    source, code = find(config, Path.cwd())
    return load_data(config, source, code).part(config.data.fraction, config.seed).num_train


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", type=Path, default=Path("conf/sweep/batch_size.toml"))
    parser.add_argument("--run", type=Path, help="a sweep's folder, in place of running it")
    parser.add_argument("--target", type=float, default=TARGET)
    arguments = parser.parse_args()
    if arguments.run is not None:
        folder = RunDirectory.existing(arguments.run)
    else:
        result = sweep.run(load(arguments.config, {}, SweepConfig), stem="batch_size")
        assert result.folder is not None
        folder = RunDirectory(result.folder)
    found = study(folder, _num_train(folder.read_config()), arguments.target)
    print("\n".join(["", *table(found, arguments.target), "", f"plot: {folder.path / 'batch_size.png'}"]))


if __name__ == "__main__":
    main()
