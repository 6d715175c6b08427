"""raygpu.train on one GPU beside the same training written by hand in torch: throughput and peak memory.

    python -m experiments.benchmarks.gpu.production [--rounds 3] [--seconds 8] [--ways float32] [--device cpu]

A ResNet-18 of CIFAR's shapes. By hand: the data on the device, torch.compile, torch.optim's fused SGD, a loop. raygpu:
one worker, in float32, in TF32 (torch's own choice for convolutions), compiled, and compiled in bf16; and two workers
on the one GPU, whose gradients go over gloo. Both sides compute in the same precision.
All take turns; each figure is the median of a run's exchanges or seconds after the warm-up. Memory is what the driver
counts on the GPU, above what was in use before.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

from experiments.benchmarks import record
from experiments.benchmarks.production import Listener
from experiments.resnet import ResNet18
from raygpu import Splits, train
from raygpu.config import TrainConfig
from raygpu.devices import nvml

HP: dict[str, Any] = {"channels": 64, "lr": 0.05, "momentum": 0.9, "batch_size": 256}
SMALL: dict[str, Any] = {"channels": 4, "lr": 0.05, "momentum": 0.9, "batch_size": 8}
WAYS: dict[str, dict[str, Any]] = {
    "float32": {},
    "tf32": {"gpu": {"precision": "tf32"}},
    "compiled": {"compile": True},
    "compiled, bf16": {"compile": True, "gpu": {"precision": "bf16"}},
}
TWO = "two workers on one GPU"
WARM_STEPS = 20
SAMPLE_S = 0.1


class Long(ResNet18):
    """With an epoch of 8192 images."""

    num_train = 8192
    num_validation = 256


class Short(ResNet18):
    """To try the benchmark out."""

    num_train = 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--ways", default=";".join(WAYS), help="with semicolons between them; float32 is one of them")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try the benchmark out")
    parser.add_argument("--by-hand", default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.by_hand is not None:
        print(json.dumps(loop(arguments.device, WAYS[arguments.by_hand], arguments.seconds)))
        return
    ways = arguments.ways.split(";")
    if unknown := [way for way in ways if way not in WAYS]:
        parser.error(f"--ways: read {'; '.join(unknown)}; there are: {'; '.join(WAYS)}")
    if "float32" not in ways:
        parser.error(f"--ways: read {arguments.ways}; float32 has to be one, with which two workers are compared")
    rounds = []
    for number in range(arguments.rounds):
        turns = [(side, way) for way in ways for side in ("by hand", "raygpu.train")] + [("raygpu.train", TWO)]
        found: dict[str, Any] = {}
        for side, way in turns if number % 2 == 0 else reversed(turns):
            found[f"{way}: {side}"] = measured(side, way, arguments)
            print(way, side, found[f"{way}: {side}"], flush=True)
        rounds.append(found)
    record.write("gpu_production", {"rounds": rounds, "ratios": ratios(rounds, ways)}, vars(arguments) | {"hp": HP})


def measured(side: str, way: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return samples/s and peak GiB of one run."""
    with memory_watched() as peak:
        if side == "by hand":
            command = [sys.executable, "-m", "experiments.benchmarks.gpu.production", "--by-hand", way]
            command += ["--device", arguments.device, "--seconds", str(arguments.seconds)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            rate = json.loads(done.stdout.strip().splitlines()[-1])
        else:
            rate = by_raygpu(WAYS.get(way, {}), 2 if way == TWO else 1, arguments)
    return {"samples_per_s": round(rate, 1), "peak_gib": max(peak, default=None)}


@contextmanager
def memory_watched() -> Iterator[list[float]]:
    """Yield a list that gets the GPU's memory in use above that at the beginning, in GiB; it stays empty without a
    GPU."""
    found: list[float] = []
    uuids = [gpu.uuid for gpu in nvml.gpus()][:1]
    over = threading.Event()

    def used() -> float:
        """Return the memory in use."""
        memory = nvml.memory(uuids[0])
        return 0.0 if memory is None else memory.used_gib

    def watch(before: float) -> None:
        """Note the memory until the run is over."""
        while not over.wait(SAMPLE_S):
            found.append(round(used() - before, 3))

    thread = threading.Thread(target=watch, args=(used(),)) if uuids else None
    if thread is not None:
        thread.start()
    try:
        yield found
    finally:
        over.set()
        if thread is not None:
            thread.join()


def by_raygpu(options: Mapping[str, Any], workers: int, arguments: argparse.Namespace) -> float:
    """Train by the command's own code until so many seconds were measured."""
    small = arguments.device == "cpu"
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig.model_validate(
            {
                "experiment": f"experiments.benchmarks.gpu.production:{'Short' if small else 'Long'}",
                "epochs": 1000,
                "metric": "accuracy",
                "workers": workers,
                "runs_dir": f"{folder}/runs",
                "tracking": {"enabled": False},
                "hyperparameters": SMALL if small else HP,
                **options,
            }
        )
        listener = Listener(arguments.seconds)
        train.run(config, console=listener)
        return listener.rate()


def loop(device: str, options: Mapping[str, Any], seconds: float) -> float:
    """Train by hand; return the median of samples/s over the seconds after the warm-up."""
    import torch
    from torch.nn.functional import cross_entropy

    experiment, hp = (Short(), SMALL) if device == "cpu" else (Long(), HP)
    splits: Splits = experiment.data()
    inputs = torch.as_tensor(splits.train_inputs, device=device)
    targets = torch.as_tensor(splits.train_targets, device=device)
    model = experiment.model(hp).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=hp["lr"], momentum=hp["momentum"], fused=True)
    if options.get("compile"):
        model.compile()
    precision = options.get("gpu", {}).get("precision", "float32")
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    bf16 = precision == "bf16"
    rates, step, since, samples = [], 0, 0.0, 0
    ends = float("inf")
    while time.perf_counter() < ends:
        for rows in torch.randperm(len(inputs), device=device).split(hp["batch_size"]):
            optimizer.zero_grad()
            with torch.autocast(device, torch.bfloat16, enabled=bf16):
                loss = cross_entropy(model(inputs[rows]), targets[rows])
            loss.backward()
            optimizer.step()
            step, samples = step + 1, samples + len(rows)
            if step == WARM_STEPS:
                ends, since, samples = time.perf_counter() + seconds, time.perf_counter(), 0
        loss.item()  # the device has finished the epoch
        if step > WARM_STEPS and samples:
            now = time.perf_counter()
            rates.append(samples / (now - since))
            since, samples = now, 0
    return median(rates)


def ratios(rounds: list[dict[str, Any]], ways: Sequence[str]) -> dict[str, Any]:
    """Return the medians of the rounds' own ratios, and of the peaks of memory."""
    found: dict[str, Any] = {}
    for way in ways:
        ours, theirs = f"{way}: raygpu.train", f"{way}: by hand"
        ratio = median(r[ours]["samples_per_s"] / r[theirs]["samples_per_s"] for r in rounds)
        found[f"{way}: raygpu.train / by hand"] = round(ratio, 3)
        if rounds[0][ours]["peak_gib"]:
            peaks = median(r[ours]["peak_gib"] / r[theirs]["peak_gib"] for r in rounds)
            found[f"{way}: peak memory, raygpu.train / by hand"] = round(peaks, 3)
    two = median(
        r[f"{TWO}: raygpu.train"]["samples_per_s"] / r["float32: raygpu.train"]["samples_per_s"] for r in rounds
    )
    return found | {f"{TWO} / one, float32": round(two, 3)}


if __name__ == "__main__":
    main()
