"""A fused sweep's whole command beside the same trials by hand on Ray Tune, and as a plain loop: for `fused_sweep`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from experiments.benchmarks.sweep_overhead import timed

CONFIGURATION = Path("conf/sweep/digits_fused.toml")
WAYS = {
    "by hand": "by hand with MLflow callback / fused (goal >= 30)",
    "by hand, reuse_actors": "by hand with MLflow callback and reuse_actors / fused (goal >= 13)",
    "plain loop": "plain loop, nothing tracked / fused (goal >= 4)",
    "plain loop, denormals flushed": "plain loop with denormals flushed / fused",
}
"""What a fused sweep's command is compared with, each with the name of its ratio."""


def fused(folder: Path, name: str, trials: int, epochs: int, uri: str) -> list[str]:
    """The words of a fused sweep's command, after the interpreter's."""
    size = ["--trials", str(trials), "--epochs", str(epochs)]
    where = ["--tracking.uri", uri, "--runs-dir", str(folder / "runs"), "--json", "--name", name]
    return ["raygpu.sweep", str(CONFIGURATION), *size, *where]


def command(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """From the shell to the last line: fused, by hand on Ray Tune, and as a plain loop."""
    store, by_hand_store = f"sqlite:///{folder}/mlflow.db", f"sqlite:///{folder}/by_hand.db"
    common = ["--space", str(CONFIGURATION), "--epochs", str(arguments.epochs)]

    def raygpu(name: str) -> dict[str, Any]:
        return timed(*fused(folder, name, arguments.trials, arguments.epochs, store), module=True)

    def by_hand(name: str, trials: int, *flags: str) -> float:
        where = ["--folder", str(folder / name), "--fraction", str(arguments.fraction), "--mlflow", by_hand_store]
        words = [*where, *common, *flags, "--trials", str(trials)]
        seconds: float = timed("experiments.benchmarks.handwritten", *words, module=True)["wall_s"]
        return seconds

    def plain(trials: int, *flags: str) -> float:
        words = [*common, *flags, "--trials", str(trials)]
        seconds: float = timed("experiments.benchmarks.plain_loop", *words, module=True)["wall_s"]
        return seconds

    timed(*fused(folder, "store", 2, 1, store), module=True)  # makes the stores, and warms the machine
    by_hand("store", 1, "--reuse")
    hand_counts = [int(count) for count in arguments.by_hand.split(",")]
    plain_counts = [int(count) for count in arguments.plain.split(",")]

    def extended(measure: Callable[[int], float], counts: list[int]) -> dict[str, Any]:
        walls = {count: measure(count) for count in counts}
        return {"wall_s": affine(walls, arguments.trials), "measured_s": walls}

    ways: dict[str, Callable[[int], dict[str, Any]]] = {
        "by hand": lambda i: extended(lambda n: by_hand(f"hand-{i}-{n}", n), hand_counts),
        "by hand, reuse_actors": lambda i: extended(lambda n: by_hand(f"reuse-{i}-{n}", n, "--reuse"), hand_counts),
        "plain loop": lambda i: extended(plain, plain_counts),
        "plain loop, denormals flushed": lambda i: extended(lambda n: plain(n, "--flush-denormal"), plain_counts),
    }
    chosen = arguments.ways.split(";")
    rounds = []
    for number in range(arguments.rounds):
        order = chosen if number % 2 == 0 else chosen[::-1]
        found: dict[str, Any] = {"fused": []}
        for way in order:
            found["fused"].append(raygpu(f"fused-{number}-{len(found['fused'])}"))
            found[way] = ways[way](number)
        rounds.append(found)

    def of(way: str) -> float:
        ratios = [found[way]["wall_s"] / median(own["wall_s"] for own in found["fused"]) for found in rounds]
        return round(median(ratios), 3)

    return {
        "how": f"fused: measured at {arguments.trials} trials, once before each other way; a ratio takes the round's"
        " median. torch's compiler keeps what it compiled from one to the next. By hand and plain loop: measured at"
        f" measured_s, and extended to {arguments.trials} trials by the straight line through both",
        "rounds": rounds,
        "stages": stages([own for found in rounds for own in found["fused"]]),
        "ratios": {f"command: {WAYS[way]}": of(way) for way in chosen},
    }


def affine(measured: dict[int, float], count: int) -> float:
    """A straight line through the smallest and the largest count, at another one."""
    (low, low_s), (high, high_s) = min(measured.items()), max(measured.items())
    return round(low_s + (high_s - low_s) / (high - low) * (count - low), 2)


def stages(sweeps: list[dict[str, Any]]) -> dict[str, float]:
    """Where the seconds of a fused command go, one stage after the other; medians of the sweeps."""

    def parts(sweep: dict[str, Any]) -> dict[str, float]:
        stage, array = sweep["stages_s"], sweep["arrays_s"]
        in_array = sum(array.values())
        return {
            "interpreter, configuration, the experiment's module": stage["start"],
            "Ray started; the experiment's module and torch imported, data read meanwhile": stage["data"],
            "dry run": stage["dry_run"],
            "Ray up, as far as it is not yet": stage["ray"],
            "actor started, results passed on": stage["plan"] + stage["trials"] - in_array,
            "actor: torch imported": array["imports"],
            "actor: members made": array["members"],
            "actor: probe, with compiling if there was any": array["probe"],
            "actor: steps": array["train"],
            "actor: evaluation, stopping": array["evaluation"],
            "tracking and files after the last epoch, Ray ended": sweep["wall_s"] - sum(stage.values()),
        }

    found = [parts(sweep) for sweep in sweeps]
    return {name: round(median(part[name] for part in found), 2) for name in found[0]}
