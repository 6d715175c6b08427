"""Whether a change made commands slower: whole ones of this checkout beside those of another commit.

    git worktree add ../before COMMIT
    python -m experiments.benchmarks.versions ../before [--rounds 7] [--runs process,fused]

Both use this environment's packages and stores of their own. A round runs each command with both checkouts, one after
the other, and every second round runs backwards. The ratios are medians of the rounds' own ratios, this checkout's wall
time over the other's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from experiments.benchmarks import record

HERE = Path(__file__).parents[2]
RUNS = {
    "process": ["sweep", "conf/sweep/digits.toml", "--trials", "16", "--epochs", "20", "--gpu.fraction", "0.5"],
    "halving": ["sweep", "conf/sweep/digits.toml", "--trials", "16", "--epochs", "20", "--gpu.fraction", "0.5",
                "--stopping.algorithm", "halving"],
    "fused": ["sweep", "conf/sweep/digits_fused.toml", "--trials", "128", "--epochs", "20"],
    "functions": ["sweep", "conf/sweep/digits_function.toml", "--repeats", "100", "--epochs", "1",
                  "--stopping.algorithm", "none", "--gpu.fraction", "0.5"],
    "short": ["sweep", "conf/sweep/digits_function.toml", "--trials", "2", "--epochs", "1",
              "--stopping.algorithm", "none"],
    "train": ["train", "conf/train/digits.toml", "--epochs", "2", "--workers", "2"],
}  # fmt: skip
"""The compared commands, all tracked; of the training and of the two short functions, nearly all is the start and the
end, and of the 600 functions, what a short trial costs."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path, help="folder of the other checkout")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--runs", default=",".join(RUNS))
    arguments = parser.parse_args()
    checkouts = {"this": HERE, "other": arguments.other.resolve()}
    with tempfile.TemporaryDirectory(prefix="raygpu-bench-") as folder:
        results = measure(checkouts, arguments.runs.split(","), arguments.rounds, Path(folder))
    commits = {name: _commit(path) for name, path in checkouts.items()}
    record.write("versions", {"commits": commits, **results}, {"rounds": arguments.rounds, "runs": RUNS})


def measure(checkouts: dict[str, Path], runs: list[str], num_rounds: int, folder: Path) -> dict[str, Any]:
    """Run every command with every checkout, `num_rounds` times, after a run of each that does not count."""
    rounds: list[dict[str, dict[str, Any]]] = []
    for number in range(-1, num_rounds):
        names = list(checkouts) if number % 2 else list(reversed(checkouts))
        timed = {run: {name: _timed(run, name, checkouts[name], folder, number) for name in names} for run in runs}
        if number >= 0:
            rounds.append(timed)
    ratios = {
        f"{run}: this / other (goal <= 1.03)": [r[run]["this"]["wall_s"] / r[run]["other"]["wall_s"] for r in rounds]
        for run in runs
    }
    return {
        "ratios": {name: round(median(values), 3) for name, values in ratios.items()},
        "ranges": {name: [round(min(values), 3), round(max(values), 3)] for name, values in ratios.items()},
        "rounds": rounds,
    }


def _timed(run: str, name: str, checkout: Path, folder: Path, number: int) -> dict[str, Any]:
    """Run one command of one checkout; return its wall seconds, of which the first run's make the store."""
    command, *words = RUNS[run]
    own = ["--name", f"{run}-{number + 1}", "--runs-dir", str(folder / name)]
    own += ["--tracking.uri", f"sqlite:///{folder}/{name}.db"]
    own += ["--profiles", str(folder / f"{name}-profiles")] if command == "sweep" else []
    command_line = [sys.executable, "-m", f"raygpu.{command}", *words, *own, "--json"]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    started = time.monotonic()
    done = subprocess.run(command_line, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    wall_s = time.monotonic() - started
    if done.returncode:
        raise RuntimeError(f"{' '.join(command_line)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    summary = json.loads(done.stdout)
    print(f"{wall_s:7.1f} s  {run:8} {name}", flush=True)
    return {"wall_s": round(wall_s, 2), "stages_s": summary.get("stages_s"), "best": summary["best"]["score"]}


def _commit(checkout: Path) -> str:
    words = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
