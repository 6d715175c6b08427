"""An array whose threads spin or yield while they wait for each other, on an idle machine and beside a busy process.

    python -m experiments.benchmarks.busy_core [--rounds 3] [--seconds 3]

Training samples/s of 64 digits MLPs on all cores, as `fused_throughput` measures them; OMP_WAIT_POLICY is unset, which
spins, or passive. The busy process keeps one core at work, as the driver does while it writes to MLflow.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from statistics import median

from experiments.benchmarks import fused_throughput, record
from experiments.benchmarks.fresh import together
from raygpu.devices.host import num_cpus

WIDTH = 64
BUSY = "while True: [str(i) for i in range(1000)]"
POLICIES = {"spins": None, "yields": "passive"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of the measured epochs of each case")
    arguments = parser.parse_args()
    chosen = [(way, step, busy) for step in ("eager", "compiled") for busy in (False, True) for way in POLICIES]
    rounds = []
    with tempfile.TemporaryDirectory(prefix="raygpu-bench-") as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        for number in range(arguments.rounds):
            order = chosen if number % 2 == 0 else [*reversed(chosen)]
            found = {case: samples_per_s(*case, arguments.seconds) for case in order}
            rounds.append({label(*case): round(rate) for case, rate in found.items()})
    ratios = {
        f"{step}, {'beside a busy process' if busy else 'idle machine'}: yields / spins": round(
            median(r[label("yields", step, busy)] / r[label("spins", step, busy)] for r in rounds), 3
        )
        for step in ("eager", "compiled")
        for busy in (False, True)
    }
    record.write("busy_core", {"rounds": rounds, "ratios": ratios}, vars(arguments))


def label(way: str, step: str, busy: bool) -> str:
    return f"{step}, {way}{', beside a busy process' if busy else ''}"


def samples_per_s(way: str, step: str, busy: bool, seconds: float) -> float:
    """Of all members together, in a process of its own."""
    case = fused_throughput.Case("mlp", step, num_cpus(), WIDTH)
    os.environ.pop("OMP_WAIT_POLICY", None)
    if policy := POLICIES[way]:
        os.environ["OMP_WAIT_POLICY"] = policy
    with busy_process() if busy else nullcontext():
        [found] = together(fused_throughput.MODULE, [asdict(case) | {"seconds": seconds}], num_cpus())
    rate: float = found["samples_per_s"]
    print(f"{rate:12,.0f} samples/s  {label(way, step, busy)}", flush=True)
    return rate


@contextmanager
def busy_process() -> Iterator[None]:
    """A Python process that keeps one core at work."""
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        yield
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
