"""Steps of arrays of residual networks: batch norms of all members as one operator, and by torch.vmap's own rule.

    python -m experiments.benchmarks.member_norms [--rounds 7] [--widths 1,4,16]

Eager steps, on the GPU if there is one, else on the CPU. Both take turns, and every second round runs backwards. The
ratio is the median of the rounds' own ratios: above 1, the one operator is the faster one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch

from experiments.benchmarks import record
from experiments.benchmarks.fused_throughput import NETWORKS
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.fused.model_array import TorchArray

ONE_OPERATOR, BY_VMAP = "one operator", "torch.vmap's rule"
WINDOW_S = 1.0
"""Seconds of a measurement."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--widths", default="1,4,16")
    arguments = parser.parse_args()
    found = {width: measured(int(width), arguments.rounds) for width in arguments.widths.split(",")}
    ratios = {
        f"steps of {width} with one operator / by torch.vmap's rule": each["ratio"] for width, each in found.items()
    }
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    record.write("member_norms", {"device": device, "widths": found, "ratios": ratios}, vars(arguments))


def measured(width: int, rounds: int) -> dict[str, Any]:
    """Return the milliseconds of a step in each way, the rounds' ratios, and on a GPU the memory."""
    steps: dict[str, Iterator[None]] = {}
    peaks: dict[str, float] = {}
    for way in (ONE_OPERATOR, BY_VMAP):
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
        steps[way] = array_of(width, way).trial_steps(width)
        next(steps[way])
        if torch.cuda.is_available():
            peaks[way] = round((torch.cuda.max_memory_allocated() - before) / 2**30, 3)
    found: dict[str, list[float]] = {way: [] for way in steps}
    for number in range(rounds):
        for way in [*steps] if number % 2 else reversed([*steps]):
            found[way].append(step_s(steps[way]))
    each = [other / one for one, other in zip(found[ONE_OPERATOR], found[BY_VMAP], strict=True)]
    milliseconds = {way: round(1e3 * median(seconds), 3) for way, seconds in found.items()}
    print(f"array of {width:3}: {milliseconds}", flush=True)
    rounded = [round(ratio, 3) for ratio in each]
    return {"step_ms": milliseconds, "peak_gib": peaks, "rounds": rounded, "ratio": round(median(each), 3)}


def array_of(width: int, way: str) -> TorchArray:
    """Return an array of small residual networks."""
    kind, shape = NETWORKS["resnet"]
    hp = {**shape, "batch_size": 32, "momentum": 0.5}
    trials = [Trial(Trial.name(i), i, {**hp, "lr": 0.1 / (i + 1)}) for i in range(width)]
    experiment = kind()
    array = TorchArray(experiment, experiment.data(), trials, Settings(1000, 1, "float32", Path()), width=width)
    if way == BY_VMAP:
        array.program.step_modes = ()
    return array


def step_s(steps: Iterator[None]) -> float:
    """Return the seconds of a step, over a window of steps."""
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < WINDOW_S:
        next(steps)
        count += 1
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / count


if __name__ == "__main__":
    main()
