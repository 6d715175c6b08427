"""How right the time left is that sweeps and a training show, against what they then took.

    python -m experiments.benchmarks.time_left [--only fused]

Sweeps of the handwritten digits, one after the other: fused and in processes, with and without early stopping, and by
Optuna; then a production training on two workers. The record has what was told every half second, and the errors at
parts of each one's way.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.benchmarks import record
from raygpu import sweep, train
from raygpu.cli.sweep_view import SweepConsole
from raygpu.cli.training_view import TrainConsole
from raygpu.config import SweepConfig, TrainConfig, load
from raygpu.records.snapshot import Snapshot
from raygpu.records.training_progress import History

SWEEPS: dict[str, dict[str, str]] = {
    "fused": {"trials": "150", "epochs": "60", "gpu.mode": "fused", "stopping.algorithm": "none"},
    "fused, halving": {"trials": "400", "epochs": "60", "gpu.mode": "fused", "stopping.algorithm": "halving"},
    "process": {"trials": "60", "epochs": "40", "gpu.mode": "process", "stopping.algorithm": "none"},
    "process, halving": {"trials": "150", "epochs": "40", "gpu.mode": "process", "stopping.algorithm": "halving"},
    "process, optuna": {"trials": "48", "epochs": "60", "gpu.mode": "process", "search.algorithm": "tpe"},
}
"""Flags of each sweep."""
TRAINING = {"epochs": "80", "workers": "2"}
PARTS = (0.25, 0.33, 0.4, 0.5, 0.6, 0.75, 0.9)
"""Parts of the way at which errors are listed."""
LATE_S = 2.0
"""Seconds by which the time left may always be wrong."""


class Told(NamedTuple):
    """What was shown at a moment."""

    moment: float
    elapsed_s: float
    left_s: float | None


class Recorder(SweepConsole):
    """Console that keeps each time left that it shows."""

    def __init__(self) -> None:
        super().__init__(json=True)
        self.told: list[Told] = []

    def update(self, snapshot: Snapshot, *others: Any) -> None:
        """Keep the time left, and show the state."""
        self.told.append(Told(time.monotonic(), snapshot.elapsed_s, snapshot.time_left_s))
        super().update(snapshot, *others)


class TrainingRecorder(TrainConsole):
    """Console that keeps each time left that a training shows."""

    def __init__(self) -> None:
        super().__init__(json=True)
        self.told: list[Told] = []

    def update(self, history: History, *others: Any) -> None:
        """Keep the time left, and show the state."""
        self.told.append(Told(time.monotonic(), history.elapsed_s, history.time_left_s))
        super().update(history, *others)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="first letters of the sweeps to run")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="raygpu-bench-") as folder:
        found = {
            name: measure(name, flags, Path(folder))
            for name, flags in SWEEPS.items()
            if name.startswith(arguments.only)
        }
        if "training".startswith(arguments.only):
            found["training"] = measure_training(Path(folder))
    record.write("time_left", found, vars(arguments))


def measure(name: str, flags: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """Run a sweep and compare what it told with what it took."""
    own = _own(name.replace(", ", "-"), folder)
    console = Recorder()
    sweep.run(load(Path("conf/sweep/digits.toml"), {**flags, **own}, SweepConfig), console=console)
    return judged(name, console.told)


def measure_training(folder: Path) -> dict[str, Any]:
    """Run a production training and compare what it told with what it took."""
    console = TrainingRecorder()
    config = load(Path("conf/train/digits.toml"), {**TRAINING, **_own("training", folder)}, TrainConfig)
    train.run(config, console=console)
    return judged("training", console.told)


def _own(name: str, folder: Path) -> dict[str, str]:
    return {"name": name, "runs_dir": str(folder / "runs"), "tracking.uri": f"sqlite:///{folder}/mlflow.db"}


def judged(name: str, told: Sequence[Told]) -> dict[str, Any]:
    """Print and return the errors of the times left.

    A time is wrong, from a quarter of the way on, if it is off by more than a third and by more than two seconds.
    """
    ended = next((each.moment for each in told if each.left_s == 0.0), told[-1].moment)
    began = told[0].moment - told[0].elapsed_s
    whole_s = ended - began
    errors: dict[str, float | None] = {}
    for part in PARTS:
        nearest = min(told, key=lambda each: abs((each.moment - began) / whole_s - part))
        true_s = ended - nearest.moment
        errors[f"{part:.0%}"] = None if nearest.left_s is None else round(nearest.left_s / true_s - 1, 3)
    late = [each for each in told if (each.moment - began) / whole_s >= PARTS[0] and each.moment < ended]
    known = [(each.left_s, ended - each.moment) for each in late if each.left_s is not None]
    wrong = sum(abs(left - true) > max(LATE_S, true / 3) for left, true in known)
    print(f"{name}: {errors}, {wrong} of {len(known)} wrong", flush=True)
    return {
        "whole_s": round(whole_s, 1),
        "errors": errors,
        "told": len(known),
        "wrong": wrong,
        "not_known": len(late) - len(known),
        "series": [
            [round(each.moment - began, 1), None if each.left_s is None else round(each.left_s, 1)] for each in told
        ],
    }


if __name__ == "__main__":
    main()
