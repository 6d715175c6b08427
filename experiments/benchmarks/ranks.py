"""Several processes that train together, as torch.distributed's ranks on this machine's CPUs."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from raygpu.training.torch_parallel import TorchRanks


def on_ranks(world: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """`function(ranks, *arguments)` in each of `world` processes; what they returned, by rank."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(_run, (world, folder, function, arguments), nprocs=world)
        return [pickle.loads((Path(folder) / str(rank)).read_bytes()) for rank in range(world)]


def _run(rank: int, world: int, folder: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    ranks = TorchRanks()
    result = function(ranks, *arguments)
    (Path(folder) / str(rank)).write_bytes(pickle.dumps(result))
    ranks.gather(None)
    os._exit(0)  # gloo's threads, where something still holds the group when Python ends, would abort the process
