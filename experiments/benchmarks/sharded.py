"""Memory of a rank whose model is sharded over two of them, beside one that has all of the model.

    python -m experiments.benchmarks.sharded

Of each rank: the bytes of its parameters, gradients, sums and optimizer's buffers, and by how much the peak of its
resident memory grew in two steps, the making of the model included. Each training has new processes, on the CPU over
gloo. Their malloc returns freed tensors to the system (MALLOC_MMAP_THRESHOLD_): else the peak tells of what it keeps.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from experiments.benchmarks import record
from experiments.benchmarks.ranks import Group
from raygpu import Splits, TorchExperiment
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.distributed.ranks import ParallelSettings
from raygpu.training.distributed.torch_ranks import TorchParallel
from raygpu.training.distributed.torch_sharded import TorchSharded, UnplacedSolo
from raygpu.training.torch.solo import TorchSolo

Kind = Literal["whole", "sharded"]
KINDS: tuple[Kind, ...] = ("whole", "sharded")
WIDTH = 1024
MIB = 2**20
THRESHOLD = "262144"
"""Bytes from which on freed memory goes back to the system."""
SIZES: dict[str, dict[str, Any]] = {
    f"{layers} layers, {optimizer}": {"layers": layers, "optimizer": optimizer}
    for layers, optimizer in ((16, "sgd"), (16, "adam"), (48, "adam"))
}


class Layers(TorchExperiment):
    """Equal linear layers, 4 MiB each in float32."""

    def data(self) -> Splits:
        generator = np.random.default_rng(0)
        inputs = generator.standard_normal((16, WIDTH), np.float32)
        targets = generator.integers(0, 10, 16)
        return Splits(inputs, targets, inputs, targets)

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        layers = [nn.Linear(WIDTH, WIDTH) for _ in range(hp["layers"])]
        return nn.Sequential(*layers, nn.Linear(WIDTH, 10))


def training(ranks: Any, kind: Kind, hp: Mapping[str, Any]) -> TorchParallel:
    """Two steps of eight samples an epoch."""
    experiment, trial, parallel = Layers(), Trial("t0000", 0, hp), ParallelSettings(8)
    settings = Settings(epochs=1, threads=1, precision="float32", folder=Path())
    solo = (UnplacedSolo if kind == "sharded" else TorchSolo)(
        experiment, experiment.data(), trial, settings, torch.device("cpu")
    )
    if isinstance(solo, UnplacedSolo):
        return TorchSharded(solo, parallel, ranks)
    return TorchParallel(solo, parallel, ranks)


def held(ranks: Any, kind: Kind, hp: Mapping[str, Any]) -> dict[str, float]:
    """MiB of a rank in its second step, and of the growth of its peak."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    own = training(ranks, kind, hp)
    parameters, buffers = own.solo.optimizer.parameters, own.solo.optimizer.buffers
    taken: dict[str, float] = {}
    step = own.solo.optimizer.step

    def counted(lr: float) -> None:
        taken["gradients"] = _mib([p.grad for p in parameters if p.grad is not None])
        step(lr)

    own.solo.optimizer.step = counted  # type: ignore[method-assign]
    own.take_steps(2)
    gradient: Any = own._gradient
    flat = [] if kind == "sharded" else [bucket.flat for bucket in gradient._sum._buckets]
    found = {
        "parameters": _mib(parameters),
        # those of one dtype are the memory of the sums
        "gradients": max(taken["gradients"], _mib(flat)),
        "buffers": _mib([buffer for each in buffers for buffer in each]),
    }
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {**found, "state": sum(found.values()), "peak growth": round(peak, 1)}


def _mib(tensors: list[torch.Tensor]) -> float:
    return round(sum(tensor.numel() * tensor.element_size() for tensor in tensors) / MIB, 2)


def main() -> None:
    os.environ["MALLOC_MMAP_THRESHOLD_"] = THRESHOLD  # of the processes that are started
    rows, ratios = [], {}
    for name, hp in SIZES.items():
        found = {}
        for kind in KINDS:
            with closing(Group.torch(2)) as group:
                ranks = group.run(held, kind, hp)
            found[kind] = ranks
            rows += [{"model": name, "kind": kind, "rank": rank, **each} for rank, each in enumerate(ranks)]
            print(*rows[-2:], sep="\n", flush=True)
        for what in ("state", "peak growth"):
            sharded, whole = (max(each[what] for each in found[kind]) for kind in ("sharded", "whole"))
            ratios[f"{name}: {what} of the fuller rank, sharded / whole"] = round(sharded / whole, 3)
    record.write(
        "sharded",
        {"rows": rows, "ratios": ratios},
        {"width": WIDTH, "unit": "MiB", "ranks": 2, "MALLOC_MMAP_THRESHOLD_": THRESHOLD},
    )


if __name__ == "__main__":
    main()
