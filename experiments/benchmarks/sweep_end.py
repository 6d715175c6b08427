"""How long a sweep takes from the end of its last trial to the prompt.

    python -m experiments.benchmarks.sweep_end [--rounds 5] [--trials 64] [--before FOLDER]

Whole commands, one after the other. The trials' end is the end of the stage `trials` in the sweep's summary, the prompt
the end of the process. --before: a checkout of an earlier raygpu, which takes turns with this one.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from experiments.benchmarks import record

HERE = Path(__file__).parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--before", type=Path)
    arguments = parser.parse_args()
    trees = {"before": arguments.before.absolute()} if arguments.before is not None else {}
    trees["now"] = HERE
    with tempfile.TemporaryDirectory(prefix="raygpu-bench-") as folder:
        rounds: list[dict[str, Any]] = []
        for number in range(arguments.rounds + 1):
            order = list(trees.items()) if number % 2 == 0 else list(trees.items())[::-1]
            found = {name: ended(tree, Path(folder), f"{name}-{number}", arguments) for name, tree in order}
            print(json.dumps(found), flush=True)
            rounds += [found] if number else []  # the first one warms the machine, and makes the store
    ratios = {
        f"{name}: {what}, median of the rounds": round(median(each[name][what] for each in rounds), 2)
        for name in trees
        for what in rounds[0][name]
    }
    record.write("sweep_end", {"rounds": rounds, "ratios": ratios}, vars(arguments))


def ended(tree: Path, folder: Path, name: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Run a sweep, and return the seconds after its last trial: of the clock, and of its process' CPU time in all."""
    command = [sys.executable, "-m", "raygpu.sweep", str(HERE / "conf/sweep/digits.toml"), "--json", "--name", name]
    command += ["--trials", str(arguments.trials), "--epochs", str(arguments.epochs), "--runs-dir", str(folder)]
    command += ["--gpu.mode", "fused", "--tracking.uri", f"sqlite:///{folder}/mlflow.db"]
    cpu_s, started = _children_s(), time.monotonic()
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tree, env=environment, check=False)
    wall_s, cpu_s = time.monotonic() - started, _children_s() - cpu_s
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    stages: dict[str, float] = json.loads(done.stdout)["stages_s"]
    names = list(stages)
    until = names.index("trials") + 1
    parts = {f"{stage}_s": stages[stage] for stage in names[until:]}
    end_s = wall_s - sum(stages[stage] for stage in names[:until])
    return {
        "end_s": round(end_s, 2),
        **parts,
        "rest_s": round(end_s - sum(parts.values()), 2),
        "cpu_s": round(cpu_s, 2),
    }


def _children_s() -> float:
    """Return the CPU seconds of the child processes that have ended; Ray's own processes are not among them."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
