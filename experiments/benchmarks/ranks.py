"""Several processes that train together on this machine's CPUs, by torch.distributed or by tf.distribute."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def on_ranks(world: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """`function(ranks, *arguments)` in each of `world` processes, with TorchRanks; what they returned, by rank."""
    with tempfile.TemporaryDirectory() as folder:
        return _spawned(world, _torch_rank, folder, function, arguments)


def on_keras_ranks(world: int, function: Callable[..., Any], *arguments: Any, local: int = 1) -> list[Any]:
    """As `on_ranks`, with KerasRanks. local: logical devices of each process."""
    with tempfile.TemporaryDirectory() as folder:
        addresses = [f"127.0.0.1:{port}" for port in _free_ports(world)]
        return _spawned(world, _keras_rank, folder, function, arguments, addresses, local)


def _spawned(world: int, target: Callable[..., None], folder: str, *arguments: Any) -> list[Any]:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=target, args=(rank, world, folder, *arguments)) for rank in range(world)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    failed = [rank for rank in range(world) if not (Path(folder) / str(rank)).exists()]
    if failed:
        raise RuntimeError(f"ranks {failed} ended without a result; what they raised is above")
    return [pickle.loads((Path(folder) / str(rank)).read_bytes()) for rank in range(world)]


def _torch_rank(rank: int, world: int, folder: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    import torch
    import torch.distributed as dist

    from raygpu.training.distributed.torch_ranks import TorchRanks

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    _ended(TorchRanks(), folder, function, arguments)


def _keras_rank(
    rank: int,
    world: int,
    folder: str,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    addresses: list[str],
    local: int,
) -> None:
    if world > 1:
        task = {"type": "worker", "index": rank}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
    from raygpu.training.base import Settings
    from raygpu.training.distributed.keras_ranks import KerasRanks

    settings = Settings(epochs=1, threads=1, precision="float32", folder=Path())
    _ended(KerasRanks(world, local, settings), folder, function, arguments)


def _ended(ranks: Any, folder: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    result = function(ranks, *arguments)
    (Path(folder) / str(ranks.rank)).write_bytes(pickle.dumps(result))
    ranks.gather([None])
    os._exit(0)  # threads of the group, where something still holds it when Python ends, would abort the process


def _free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    for each in held:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports
