"""Several processes that train together on this machine's CPUs, by torch.distributed or by tf.distribute."""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import closing
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any


def on_ranks(world: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """`function(ranks, *arguments)` in each of `world` processes, with TorchRanks; what they returned, by rank."""
    with closing(Group.torch(world)) as group:
        return group.run(function, *arguments)


def on_keras_ranks(world: int, function: Callable[..., Any], *arguments: Any, local: int = 1) -> list[Any]:
    """As `on_ranks`, with KerasRanks. local: logical devices of each process."""
    with closing(Group.keras(world, local)) as group:
        return group.run(function, *arguments)


class Group:
    """Processes that train together, for one function after another. They end with this process at the latest."""

    def __init__(self, world: int, target: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._processes, self._pipes = [], []
        for rank in range(world):
            here, there = context.Pipe()
            process = context.Process(target=target, args=(there, rank, world, *arguments), daemon=True)
            process.start()
            there.close()
            self._processes.append(process)
            self._pipes.append(here)
        # multiprocessing would wait for their end after a SIGTERM, which TensorFlow's cluster takes for a notice.
        atexit.register(self.close)

    @classmethod
    def torch(cls, world: int) -> Group:
        """Processes with TorchRanks."""
        return cls(world, _torch_rank, tempfile.mkdtemp())

    @classmethod
    def keras(cls, world: int, local: int = 1) -> Group:
        """Processes with KerasRanks. local: logical devices of each process."""
        return cls(world, _keras_rank, [f"127.0.0.1:{port}" for port in _free_ports(world)], local)

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call `function(ranks, *arguments)` in each process; what they returned, by rank. Raises RuntimeError, and
        ends the processes, where one of them raises or ends."""
        for pipe in self._pipes:
            pipe.send((function, arguments))
        found: dict[int, Any] = {}
        while len(found) < len(self._pipes):
            ready = wait([pipe for rank, pipe in enumerate(self._pipes) if rank not in found])
            for rank, pipe in enumerate(self._pipes):
                if pipe in ready:
                    try:
                        found[rank] = pipe.recv()
                    except EOFError:
                        self.close()
                        raise RuntimeError(f"rank {rank} ended without a result; what it raised is above") from None
        return [found[rank] for rank in sorted(found)]

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()  # threads of the group would abort a process that Python ends
            process.join()


def _torch_rank(pipe: Connection, rank: int, world: int, folder: str) -> None:
    import torch
    import torch.distributed as dist

    from raygpu.training.distributed.torch_ranks import TorchRanks

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    _serve(pipe, TorchRanks())


def _keras_rank(pipe: Connection, rank: int, world: int, addresses: list[str], local: int) -> None:
    if world > 1:
        task = {"type": "worker", "index": rank}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
    from raygpu.training.base import Settings
    from raygpu.training.distributed.keras_devices import KerasRanks

    settings = Settings(epochs=1, threads=1, precision="float32", folder=Path())
    _serve(pipe, KerasRanks(world, local, settings))


def _serve(pipe: Connection, ranks: Any) -> None:
    """Call the functions that arrive, until this process is killed. A fault is printed and ends it at once."""
    while True:
        function, arguments = pipe.recv()
        try:
            pipe.send(function(ranks, *arguments))
        except BaseException:  # noqa: BLE001 - whatever it is, the other side is told by the end of the pipe
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)


def _free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    for each in held:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports
