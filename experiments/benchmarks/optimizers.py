"""A step of raygpu's optimizers, and of torch.optim's: a loop, foreach and fused; and what each costs a fresh process.

    python -m experiments.benchmarks.optimizers [--rounds 15] [--threads 1]

On the GPU if there is one, else on the CPU. All ways take turns in each round. A step on a GPU is timed until the
device has finished a burst of steps, so it counts what the host or the device takes, whichever is longer. `ratios` has
the medians of torch.optim's step over raygpu's of the same round: above 1, raygpu's is the faster one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import nn

from experiments.benchmarks import record
from experiments.resnet import ResNet18
from raygpu.training.hyperparameters import OptimizerSettings
from raygpu.training.torch.optimizers import BuiltinOptimizer

LR = 1e-3
OPTIMIZERS: dict[str, tuple[dict[str, Any], Any, dict[str, Any]]] = {
    "SGD with momentum": ({"momentum": 0.9}, torch.optim.SGD, {"momentum": 0.9}),
    "Adam": ({"optimizer": "adam"}, torch.optim.Adam, {}),
    "AdamW": ({"optimizer": "adamw"}, torch.optim.AdamW, {}),
}
WAYS: dict[str, dict[str, bool]] = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
BURST_S = 0.03
"""Smallest duration of a timed burst of steps, in seconds."""
STARTS = {
    "torch alone": "",
    "raygpu": "from raygpu.training.torch.optimizers import *; BuiltinOptimizer(OptimizerSettings(), p).step(0.1)",
    "torch.optim": "torch.optim.SGD(p, 0.1).step()",
}
"""What a fresh process does between importing torch and the end of its first step."""


def models() -> dict[str, nn.Module]:
    """A packed worker's model, and one of production."""
    mlp = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    return {"MLP": mlp, "ResNet-18": ResNet18().model({"channels": 64})}


def steps(model: nn.Module, optimizer: str, device: torch.device) -> dict[str, Callable[[], None]]:
    """A step of each way, on parameters of its own and with the same gradients."""
    hp, kind, options = OPTIMIZERS[optimizer]
    shapes = [parameter.shape for parameter in model.parameters()]
    gradients = [torch.randn(shape, device=device) * 1e-2 for shape in shapes]

    def fresh() -> list[torch.Tensor]:
        return [torch.randn(shape, device=device, requires_grad=True) for shape in shapes]

    def give(parameters: list[torch.Tensor]) -> None:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient

    def of_raygpu() -> Callable[[], None]:
        parameters = fresh()
        own = BuiltinOptimizer(OptimizerSettings.of({"lr": LR, **hp}), parameters)

        def step() -> None:
            give(parameters)
            own.step(LR)

        return step

    def of_torch(way: str) -> Callable[[], None]:
        parameters = fresh()
        other = kind(parameters, lr=LR, **options, **WAYS[way])

        def step() -> None:
            give(parameters)
            other.step()
            other.zero_grad()

        return step

    return {"raygpu": of_raygpu()} | {way: of_torch(way) for way in WAYS}


def burst_s(step: Callable[[], None], count: int, device: torch.device) -> float:
    """Seconds of some steps, until the device has finished them."""
    started = time.perf_counter()
    for _ in range(count):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def measure(model: nn.Module, optimizer: str, device: torch.device, rounds: int) -> list[dict[str, float]]:
    """Microseconds of a step by each way, in each round."""
    ways = steps(model, optimizer, device)
    counts = {}
    for way, step in ways.items():
        count = 1
        while burst_s(step, count, device) < BURST_S:
            count *= 2
        counts[way] = count
    found = []
    for number in range(rounds):
        order = list(ways) if number % 2 else list(reversed(ways))
        one = {way: burst_s(ways[way], counts[way], device) / counts[way] * 1e6 for way in order}
        found.append({way: round(one[way], 2) for way in ways})
    return found


def start_s(code: str) -> float:
    """Seconds from an imported torch to the end of a first step, in a fresh process."""
    lines = [
        "import time, torch",
        "import raygpu.training.hyperparameters",  # NumPy and the like, which every worker has
        "p = [torch.nn.Parameter(torch.ones(3))]",
        "p[0].grad = torch.ones(3)",
        "started = time.perf_counter()",
        code,
        "print(time.perf_counter() - started)",
    ]
    ended = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    return float(ended.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of a step, as a packed worker has")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows, ratios, medians = [], {}, {}
    for model_name, model in models().items():
        for optimizer in OPTIMIZERS:
            rounds = measure(model, optimizer, device, arguments.rounds)
            rows.append({"model": model_name, "optimizer": optimizer, "us": rounds})
            name = f"{model_name}, {optimizer}"
            medians[name] = {way: round(median(one[way] for one in rounds), 1) for way in rounds[0]}
            for way in WAYS:
                ratios[f"{name}: {way}"] = round(median(one[way] / one["raygpu"] for one in rounds), 2)
            print(name, json.dumps(medians[name]), flush=True)
    starts: dict[str, list[float]] = {name: [] for name in STARTS}
    for _ in range(5):
        for name, code in STARTS.items():
            starts[name].append(round(start_s(code), 4))
    results = {
        "device": str(device),
        "rows": rows,
        "median_us": medians,
        "first_step_s": starts,
        "ratios": ratios | {f"first step, s: {name}": median(found) for name, found in starts.items()},
    }
    record.write("optimizers", results, vars(arguments), "gpu" if device.type == "cuda" else None)


if __name__ == "__main__":
    main()
