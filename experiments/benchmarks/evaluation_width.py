"""Evaluation of an array on a CPU: members in parts of several sizes, all at once, and in the parts that it chooses.

    python -m experiments.benchmarks.evaluation_width [--members 256] [--rounds 5]

Milliseconds of one evaluation of all members; the sizes take turns. ratios: all at once over the parts that are chosen,
medians of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

from experiments.benchmarks import record
from experiments.digits import Cnn, Mlp
from raygpu import Splits
from raygpu.devices.host import num_cpus
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.fused.model_array import TorchArray


class Wide(Mlp):
    """With samples that are twelve times as wide."""

    def data(self) -> Splits:
        narrow = super().data()
        inputs, others = (np.tile(np.asarray(part), 12) for part in (narrow.train_inputs, narrow.validation_inputs))
        return Splits(inputs, narrow.train_targets, others, narrow.validation_targets)

    def model(self, hp: Any) -> nn.Module:
        return nn.Sequential(nn.Linear(768, hp["hidden"]), nn.ReLU(), nn.Linear(hp["hidden"], 10))


NETWORKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "mlp, 32 units": (Mlp, {"hidden": 32}),
    "mlp, 256 units": (Mlp, {"hidden": 256}),
    "mlp of 768 inputs, 32 units": (Wide, {"hidden": 32}),
    "cnn, 8 channels": (Cnn, {"blocks": 1, "channels": 8}),
    "cnn, 8 and 16 channels": (Cnn, {"blocks": 2, "channels": 8, "channels2": 16}),
}
SIZES = (4, 8, 16, 32, 64)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--members", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(num_cpus())
    results: dict[str, Any] = {"networks": {}, "ratios": {}}
    for name, (kind, hyperparameters) in NETWORKS.items():
        found = measured(kind(), hyperparameters, arguments.members, arguments.rounds)
        results["networks"][name] = found
        pairs = zip(found["ms"]["all"], found["ms"]["chosen"], strict=True)
        results["ratios"][f"{name}: all at once / in parts"] = round(median(a / b for a, b in pairs), 2)
        print(name, found["chosen"], {size: round(median(each), 1) for size, each in found["ms"].items()}, flush=True)
    record.write("evaluation_width", results, vars(arguments))


def measured(experiment: Any, hyperparameters: dict[str, Any], members: int, rounds: int) -> dict[str, Any]:
    """The milliseconds of each size, and the size that the array chooses."""
    trials = [Trial(Trial.name(i), i, {**hyperparameters, "lr": 0.01, "batch_size": 32}) for i in range(members)]
    array = TorchArray(experiment, experiment.data(), trials, Settings(1, num_cpus(), "float32", Path()), width=members)
    array._evaluate(array.tiles[0])
    chosen = array.program.evaluation.chunk
    sizes = {"chosen": chosen, **{str(size): size for size in SIZES}, "all": members}
    ms: dict[str, list[float]] = {name: [] for name in sizes}
    for number in range(rounds):
        for name in sizes if number % 2 == 0 else reversed(sizes):
            array.program.evaluation.chunk = sizes[name]
            started = time.perf_counter()
            array._evaluate(array.tiles[0])
            ms[name].append(round(1e3 * (time.perf_counter() - started), 2))
    return {"chosen": chosen, "ms": ms}


if __name__ == "__main__":
    main()
