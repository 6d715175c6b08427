"""A sweep as a job of Slurm: what that costs, and what a wall time of a third of the work costs.

    python -m experiments.benchmarks.slurm [--rounds 3] [--trials 8] [--epochs 5] [--seconds 300]

A real Slurm on this machine (tests/services/slurm.py). Then
- the same sweep submitted and run in place, each alone on the machine, in turn. Of the submitted one, the seconds are
  those of its allocation, by Slurm's clock of whole seconds: what it waits in the queue is not the job's;
- two trials that sleep a second an epoch, with as many epochs as need three wall times of two minutes: how often each
  epoch was trained, and the seconds of each start before its first epoch.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from experiments.benchmarks import record
from tests.services.slurm import ROOT, Slurm, slurm

WALL_MIN = 2
SIGNAL_S = 20
SLEEPING = """
import time
import raygpu

def train(config):
    state = raygpu.load({"epoch": 0})
    for epoch in range(state["epoch"], config["epochs"]):
        time.sleep(1)
        with open(config["marks"], "a") as file:
            file.write(f"{config['x']:.6f} {epoch} {time.time():.1f}\\n")
        raygpu.checkpoint({"epoch": epoch + 1})
        raygpu.report(score=epoch + config["x"])
"""
CONFIGURATION = """
experiment = "sleeping:train"
trials = 2
metric = "score"
direction = "max"
[gpu]
fraction = 0.5
[space]
x = {{ uniform = [0.0, 1.0] }}
epochs = {epochs}
marks = "{folder}/marks"
"""


def submitted(whole: Slurm, words: list[str], folder: Path, *flags: str) -> tuple[float, dict[str, Any]]:
    """Submit a command and follow it; return the seconds of its allocation, and its record."""
    done = whole.raygpu("submit", *words, "--slurm.cpus-per-task", "2", *flags, cwd=folder, timeout_s=3600)
    assert done.returncode == 0, done.stdout + done.stderr
    number = re.search(r"Submitted batch job (\d+)", done.stdout)
    assert number is not None
    while (job := whole.job(number[1]))["JobState"] in ("RUNNING", "COMPLETING"):
        time.sleep(0.5)
    began, ended = (datetime.datetime.fromisoformat(job[name]) for name in ("StartTime", "EndTime"))
    return (ended - began).total_seconds(), dict(job)


def compared(whole: Slurm, arguments: argparse.Namespace, folder: Path) -> list[dict[str, float]]:
    """Seconds of the same sweep in both ways, in turn."""
    words = ["sweep", str(ROOT / "conf/sweep/digits.toml"), "--trials", str(arguments.trials)]
    words += ["--epochs", str(arguments.epochs)]
    rows = []
    for number in range(arguments.rounds):
        row: dict[str, float] = {}
        for way in ("in place", "submitted") if number % 2 else ("submitted", "in place"):
            named = [*words, "--name", f"{way.replace(' ', '-')}-{number}"]
            began = time.monotonic()
            if way == "in place":
                done = whole.raygpu(*named, cwd=folder)
                assert done.returncode == 0, done.stderr
                row[way] = round(time.monotonic() - began, 2)
            else:
                row[way] = submitted(whole, named, folder, "--slurm.time", "9")[0]
        row["added"] = round(row["submitted"] - row["in place"], 2)
        row["load"] = round(os.getloadavg()[0], 1)
        rows.append(row)
        print(row, flush=True)
    return rows


def out_of_time(whole: Slurm, seconds: int, folder: Path) -> dict[str, Any]:
    """Epochs that were trained twice, with a wall time of about a third of the work."""
    (folder / "sleeping.py").write_text(SLEEPING)
    (folder / "sleeping.toml").write_text(CONFIGURATION.format(epochs=seconds, folder=folder))
    flags = ("--slurm.time", str(WALL_MIN), "--slurm.signal-s", str(SIGNAL_S))
    began = time.monotonic()
    submitted(whole, ["sweep", "sleeping.toml", "--name", "sleeping"], folder, *flags)
    took = time.monotonic() - began
    lines = [line.split() for line in (folder / "marks").read_text().splitlines()]
    marks = [(x, int(epoch)) for x, epoch, _ in lines]
    distinct = set(marks)
    assert len(distinct) == 2 * seconds
    return {
        "epochs": len(distinct),
        "trained twice": len(marks) - len(distinct),
        "starts": 1 + json.loads((folder / "runs/sleeping/slurm/job.json").read_text())["restarts"],
        "seconds in all, with the queue": round(took, 1),
        "wall time of a start, s": WALL_MIN * 60,
    }


def main() -> None:
    """Run the benchmark and write its record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=240)
    arguments = parser.parse_args()
    with slurm() as whole, tempfile.TemporaryDirectory(prefix="bench-") as folder:
        whole.environment["PYTHONPATH"] = str(ROOT)
        pairs = compared(whole, arguments, Path(folder))
        clock = out_of_time(whole, arguments.seconds, Path(folder))
    added = [row["added"] for row in pairs]
    results = {
        "pairs": pairs,
        "out of time": clock,
        "ratios": {
            "submitted over in place, median": round(median(row["submitted"] / row["in place"] for row in pairs), 3),
            "seconds added after the allocation starts, median": round(median(added), 2),
            "epochs trained twice": clock["trained twice"],
            "of epochs": clock["epochs"],
            "starts": clock["starts"],
        },
    }
    record.write("slurm", results, vars(arguments))


if __name__ == "__main__":
    main()
