"""Several processes that train together, as torch.distributed's ranks on this machine's CPUs."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from raygpu.experiment import Splits
from raygpu.training.base import Settings
from raygpu.training.parallel import OneRank, Parallel, Ranks
from raygpu.training.torch_parallel import TorchParallel, TorchRanks
from raygpu.trials import Trial


def on_ranks(world: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """`function(ranks, *arguments)` in each of `world` processes; what they returned, by rank."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(_run, (world, folder, function, arguments), nprocs=world)  # type: ignore[no-untyped-call]
        return [pickle.loads((Path(folder) / str(rank)).read_bytes()) for rank in range(world)]


def _run(rank: int, world: int, folder: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    try:
        result = function(TorchRanks(), *arguments)
        (Path(folder) / str(rank)).write_bytes(pickle.dumps(result))
    finally:
        dist.destroy_process_group()


def training(
    experiment: Any,
    splits: Splits,
    hp: Mapping[str, Any],
    parallel: Parallel,
    ranks: Ranks | None = None,
    *,
    epochs: int = 2,
    dtype: torch.dtype | None = None,
    wish: Callable[[], Any] = lambda: "",
) -> TorchParallel:
    """One rank's part of a training, by default of the only one."""
    settings = Settings(epochs=epochs, threads=1, precision="float32", folder=Path())
    ranks = ranks or OneRank()
    trial = Trial("t0000", 3, hp)
    return TorchParallel(experiment, splits, trial, settings, parallel, ranks, wish=wish, dtype=dtype)


def gradient(training: TorchParallel) -> list[torch.Tensor]:
    """Of the next optimizer step, which is not taken."""
    taken: list[torch.Tensor] = []

    def take(lr: float) -> None:
        for parameter in training.solo.optimizer.parameters:
            if parameter.grad is not None:
                taken.append(parameter.grad.clone())
            parameter.grad = None

    training.solo.optimizer.step = take  # type: ignore[method-assign]
    training.take_steps(1)
    return taken


def parameters(training: TorchParallel) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in training.solo.model.parameters()]
