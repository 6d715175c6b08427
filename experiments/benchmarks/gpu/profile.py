"""Where the time of a step goes on a GPU: kernels, copies, and the gaps in which it waits for the next launch.

    python -m experiments.benchmarks.gpu.profile [--steps 20] [--device cpu]

Epochs of one training and of arrays, eager and replayed as a CUDA graph, under torch.profiler. The record has for each
the device's busy share, the number and mean length of kernels, and the operations that took longest.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from experiments.benchmarks import record
from experiments.benchmarks.fused_throughput import NETWORKS
from raygpu.devices.host import num_cpus
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.fused.model_array import TorchArray
from raygpu.training.fused.width import settle
from raygpu.training.torch.solo import TorchSolo

WIDTHS = (8, 64, 512)
LONGEST = 15
"""Operations that are listed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=20, help="epochs that are profiled")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try it out")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device: read cuda; torch sees no NVIDIA GPU here")
    widths = WIDTHS if arguments.device == "cuda" else WIDTHS[:1]
    found: dict[str, Any] = {}
    for network in ("mlp", "cnn"):
        for name, epoch in trainings(network, widths, arguments.device).items():
            found[f"{network}, {name}"] = profiled(epoch, arguments)
            print(f"{network}, {name}: {found[f'{network}, {name}']['summary']}", flush=True)
    summaries = {name: each["summary"] for name, each in found.items()}
    record.write("gpu_profile", {"trainings": found, "ratios": summaries}, vars(arguments))


def trainings(network: str, widths: tuple[int, ...], device: str) -> Mapping[str, Callable[[], object]]:
    """Return a function that trains one epoch, for a training alone and for arrays."""
    kind, shape = NETWORKS[network]
    experiment, settings = kind(), Settings(10_000, num_cpus(), "float32", Path())
    trials = [Trial(f"t{i:04d}", i, {**shape, "batch_size": 32, "lr": 0.05}) for i in range(max(widths))]
    found: dict[str, Callable[[], object]] = {}
    found["alone"] = TorchSolo(experiment, experiment.data(), trials[0], settings).run_epoch
    for width in widths:
        found[f"array of {width}"] = TorchArray(experiment, experiment.data(), trials[:width], settings).run_epoch
        if device == "cuda":
            array = TorchArray(experiment, experiment.data(), trials[:width], settings)
            settle(array)
            found[f"array of {width}, as a sweep runs it"] = array.run_epoch
    return found


def profiled(epoch: Callable[[], object], arguments: argparse.Namespace) -> dict[str, Any]:
    """Profile some epochs after two that warm up."""
    on_gpu = arguments.device == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    for _ in range(2):
        epoch()
    with profile(activities=activities) as recorded:
        for _ in range(arguments.steps):
            epoch()
        if on_gpu:
            torch.cuda.synchronize()
    events = recorded.events()
    kernels = [event for event in events if event.device_type == torch.autograd.DeviceType.CUDA]
    of_device = kernels if on_gpu else [event for event in events if event.cpu_parent is None]
    spans = sorted((event.time_range.start, event.time_range.end) for event in of_device)
    busy_us = united(spans)
    wall_us = spans[-1][1] - spans[0][0] if spans else 0.0
    key = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    table = sorted(recorded.key_averages(), key=lambda each: -getattr(each, key))[:LONGEST]
    total = sum(getattr(each, key) for each in recorded.key_averages()) or 1.0
    return {
        "summary": {
            "busy share": round(busy_us / wall_us, 3) if wall_us else None,
            "kernels of an epoch": round(len(of_device) / arguments.steps, 1),
            "mean kernel, us": round(busy_us / len(of_device), 2) if of_device else None,
            "epoch, ms": round(wall_us / arguments.steps / 1e3, 3),
        },
        "longest": [
            {"name": each.key[:120], "calls": each.count, "share": round(getattr(each, key) / total, 4)}
            for each in table
        ],
    }


def united(spans: list[tuple[float, float]]) -> float:
    """Return the length that sorted spans cover together."""
    covered, until = 0.0, float("-inf")
    for start, end in spans:
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered


if __name__ == "__main__":
    main()
