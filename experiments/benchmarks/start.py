"""Seconds from a command to its first training step, beside a bare process with Ray and torch, and to the prompt.

    python -m experiments.benchmarks.start [--rounds 7] [--other ../before] [--trials 8]

A round runs, one after the other, the bare process (`ray.init()` and one actor that imports torch, as a whole, and to
the actor's answer), and the same short sweep in fused mode and in process mode; with --other, the sweeps of another
checkout too. Every second round runs backwards. The first round is left out: it is cold. The ratios are medians of the
rounds' own ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from experiments.benchmarks import record
from experiments.digits import Mlp

HERE = Path(__file__).parents[2]
NOTE = "RAYGPU_BENCHMARK_FIRST_STEP"
"""Variable with the file in which the first training step's moment is noted."""
SWEEP = ["conf/sweep/digits.toml", "--experiment", "experiments.benchmarks.start:Noted", "--epochs", "2"]
MODES = {
    "fused": ["--gpu.mode", "fused"],
    "process": ["--gpu.mode", "process", "--gpu.fraction", "0.5"],
}
BARE = """
import sys, time
began = float(sys.argv[1])
import ray
ray.init(address="local", num_cpus=2, num_gpus=1, log_to_driver=False, logging_level=40)

@ray.remote(num_gpus=0.2)
class Actor:
    def answer(self):
        import torch
        return float(torch.zeros(2).sum())

actor = Actor.remote()
ray.get(actor.answer.remote())
print(time.time() - began)
ray.shutdown()
"""


class Noted(Mlp):
    """A small network that notes the moment of the first training step in a worker."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        """Return the loss; note the moment of the first call, which is no dry run."""
        if "default_worker" in sys.argv[0] and NOTE in os.environ:
            with contextlib.suppress(FileExistsError), open(os.environ[NOTE], "x") as file:
                file.write(str(time.time()))
        return super().loss(outputs, targets)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--other", type=Path, help="folder of another checkout")
    arguments = parser.parse_args()
    checkouts = {"this": HERE} | ({"other": arguments.other.resolve()} if arguments.other else {})
    with tempfile.TemporaryDirectory(prefix="raygpu-bench-") as folder:
        rounds = [_round(checkouts, arguments.trials, Path(folder), number) for number in range(arguments.rounds + 1)]
    warm = rounds[1:]
    ratios = {
        f"{name}: first step / bare": [each[name]["first_step_s"] / each["bare"]["answer_s"] for each in warm]
        for name in warm[0]
        if name != "bare"
    }
    results = {
        "ratios": {name: round(median(values), 3) for name, values in ratios.items()},
        "ranges": {name: [round(min(values), 3), round(max(values), 3)] for name, values in ratios.items()},
        "medians_s": {
            name: {key: round(median(each[name][key] for each in warm), 2) for key in found if key.endswith("_s")}
            for name, found in warm[0].items()
        },
        "cold": rounds[0],
        "rounds": warm,
    }
    record.write("start", results, {"rounds": arguments.rounds, "trials": arguments.trials, "sweep": SWEEP})


def _round(checkouts: Mapping[str, Path], num_trials: int, folder: Path, number: int) -> dict[str, dict[str, Any]]:
    tasks: list[tuple[str, Any]] = [("bare", lambda: _bare(folder))]
    for name, checkout in checkouts.items():
        for mode in MODES:
            tasks.append((f"{mode}, {name}", _later(checkout, mode, num_trials, folder / f"{number}-{name}-{mode}")))
    found = {}
    for name, run in tasks if number % 2 else reversed(tasks):
        found[name] = run()
        print(f"{name:16} {found[name]}", flush=True)
    return {name: found[name] for name, _ in tasks}


def _later(checkout: Path, mode: str, num_trials: int, folder: Path) -> Any:
    return lambda: _sweep(checkout, mode, num_trials, folder)


def _bare(folder: Path) -> dict[str, Any]:
    """Run the bare process; return its seconds to the actor's answer, and to its end."""
    began = time.time()
    done = subprocess.run([sys.executable, "-c", BARE, str(began)], cwd=folder, capture_output=True, check=True)
    return {"answer_s": round(float(done.stdout), 2), "whole_s": round(time.time() - began, 2)}


def _sweep(checkout: Path, mode: str, num_trials: int, folder: Path) -> dict[str, Any]:
    """Run one sweep; return its seconds to the first training step, from the last epoch to the prompt, and in all."""
    folder.mkdir()
    store = ["--tracking.uri", f"sqlite:///{folder.parent}/{checkout.name}.db", "--runs-dir", str(folder / "runs")]
    own = ["--trials", str(num_trials), "--profiles", str(folder.parent / f"{checkout.name}-profiles"), "--json"]
    command = [sys.executable, "-m", "raygpu.sweep", *SWEEP, *MODES[mode], *store, *own]
    # This module's experiment, whichever checkout's raygpu trains it.
    path = os.pathsep.join(dict.fromkeys([str(checkout), str(HERE)]))
    environment = {**os.environ, "PYTHONPATH": path, NOTE: str(folder / "first_step")}
    began = time.time()
    done = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, check=False)
    ended = time.time()
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    summary = json.loads(done.stdout)
    (timeline,) = (folder / "runs").glob("*/timeline.jsonl")
    moments = [row["at"] for row in map(json.loads, timeline.read_text().splitlines()) if row["event"] == "epochs"]
    return {
        "first_step_s": round(float((folder / "first_step").read_text()) - began, 2),
        "end_s": round(ended - max(moments), 2),
        "whole_s": round(ended - began, 2),
        "stages": summary.get("stages_s"),
    }


if __name__ == "__main__":
    main()
