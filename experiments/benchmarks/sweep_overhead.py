"""What raygpu's sweep costs beside the same sweep written by hand on Ray Tune, and what its tracking costs.

    python -m experiments.benchmarks.sweep_overhead [--rounds 3] [--trials 32] [--epochs 20]

Whole commands, from the shell to their end, one after the other in each round, so that every round sees the same
machine. The record has every number; the ratios are medians of the rounds' own ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from experiments.benchmarks import record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--fraction", type=float, default=0.2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="raygpu-bench-") as folder:
        record.write("sweep_overhead", measure(Path(folder), arguments), vars(arguments))


def measure(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run every way in turn, `rounds` times."""
    common = ["--trials", str(arguments.trials), "--epochs", str(arguments.epochs)]
    store = f"sqlite:///{folder}/mlflow.db"

    def raygpu(name: str, *flags: str, uri: str = store) -> dict[str, Any]:
        fraction = ["--gpu.fraction", str(arguments.fraction), "--runs-dir", str(folder / "runs"), "--name", name]
        return timed("raygpu.sweep", *common, *fraction, "--tracking.uri", uri, "--json", *flags, module=True)

    def by_hand(name: str, *flags: str) -> dict[str, Any]:
        where = ["--fraction", str(arguments.fraction), "--folder", str(folder / name), "--reuse"]
        return timed("experiments.benchmarks.handwritten", *common, *where, *flags, module=True)

    new_store = raygpu("first", uri=f"sqlite:///{folder}/new.db")  # warms the machine, and makes a new store
    raygpu("store", "--trials", "1", "--epochs", "1")
    by_hand_store = f"sqlite:///{folder}/by_hand.db"
    ways: dict[str, Callable[[int], dict[str, Any]]] = {
        "raygpu": lambda i: raygpu(f"on-{i}"),
        "raygpu without tracking": lambda i: raygpu(f"off-{i}", "--no-tracking.enabled"),
        "by hand": lambda i: by_hand(f"hand-{i}"),
        "by hand with MLflow callback": lambda i: by_hand(f"hand-mlflow-{i}", "--mlflow", by_hand_store),
    }
    rounds = []
    for number in range(arguments.rounds):
        # Every second round runs backwards, so that no way always follows the same one.
        order = list(ways) if number % 2 == 0 else list(reversed(ways))
        rounds.append({way: ways[way](number) for way in order})
    return {"new store": new_store, "rounds": rounds, "stages": stages(rounds), "ratios": ratios(rounds)}


def stages(rounds: list[dict[str, Any]]) -> dict[str, float]:
    """Seconds from the command to the end of each stage of a tracked sweep, medians of the rounds."""
    told: dict[str, Callable[[dict[str, Any]], float]] = {
        "interpreter, configuration, experiment and data": lambda run: _until(run, "dry_run"),
        "Ray up, MLflow imported meanwhile": lambda run: _until(run, "ray"),
        "first epoch of the first trial: workers started, torch imported in each": lambda run: run["first_epoch_s"],
        "last trial ended": lambda run: _until(run, "trials"),
    }
    found = {stage: round(median(ended(r["raygpu"]) for r in rounds), 1) for stage, ended in told.items()}
    return found | {"everything written, Ray ended": round(median(r["raygpu"]["wall_s"] for r in rounds), 1)}


def _until(run: dict[str, Any], last: str) -> float:
    """Return the seconds from the command to the end of a stage."""
    names = list(run["stages_s"])
    return sum(run["stages_s"][name] for name in names[: names.index(last) + 1])


def ratios(rounds: list[dict[str, Any]]) -> dict[str, float]:
    """Medians over the rounds of one way's wall time over another's in the same round."""

    def of(a: str, b: str) -> float:
        return round(median(r[a]["wall_s"] / r[b]["wall_s"] for r in rounds), 3)

    return {
        "raygpu tracked / by hand untracked (goal <= 1.0)": of("raygpu", "by hand"),
        "raygpu tracked / by hand with MLflow callback (goal <= 0.5)": of("raygpu", "by hand with MLflow callback"),
        "raygpu tracked / raygpu untracked (goal <= 1.05)": of("raygpu", "raygpu without tracking"),
    }


def timed(*words: str, module: bool) -> dict[str, Any]:
    """Run a command to its end: its wall seconds, and raygpu's own account of where they went."""
    command = [sys.executable, *(["-m"] if module else []), *words]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    wall_s = time.monotonic() - started
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    print(f"{wall_s:7.1f} s  {' '.join(words[:1])} {' '.join(words[-3:])}", flush=True)
    found: dict[str, Any] = {"wall_s": round(wall_s, 2)}
    if done.stdout.startswith("{"):
        summary = json.loads(done.stdout)
        found |= {
            "stages_s": summary["stages_s"],
            "first_epoch_s": summary["first_epoch_s"],
            "arrays_s": summary["arrays_s"],
            "trials_wall_s": summary["wall_s"],
            "best": summary["best"]["score"],
        }
    return found


if __name__ == "__main__":
    main()
