"""Ray Train's torch.distributed backend for workers on one machine: the store listens on 127.0.0.1 alone.

Ray's own backend starts torch's store on every network interface, and needs no token.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import Any

import ray.train
import torch.distributed as dist
from ray.train.torch import TorchConfig

LOOPBACK = "127.0.0.1"
_served: list[dist.TCPStore] = []
"""Reference to the store in the process of rank 0, which keeps it alive."""


class LoopbackBackend(TorchConfig().backend_cls):  # type: ignore[misc]
    """Ray's torch backend with a store on loopback; it sets the same environment variables."""

    def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
        """Start the store on rank 0, then join all ranks to one process group."""
        seconds, size = backend_config.timeout_s, len(worker_group)
        port = worker_group.execute_single(0, _serve, size, seconds)
        worker_group.execute(_join, port, size, backend_config.backend, seconds)


class LoopbackConfig(TorchConfig):
    """Ray's torch configuration that selects the loopback backend."""

    @property
    def backend_cls(self) -> type[LoopbackBackend]:
        """Return the loopback backend."""
        return LoopbackBackend


def _serve(size: int, seconds: int) -> int:
    """Start the store on rank 0 and return its port."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        port = int(listener.getsockname()[1])
        store = dist.TCPStore(
            LOOPBACK,
            port,
            size,
            is_master=True,
            timeout=timedelta(seconds=seconds),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
    _served[:] = [store]
    return port


def _join(port: int, size: int, backend: str, seconds: int) -> None:
    """Set the environment variables of a rank and join the process group; called on every rank at once."""
    context = ray.train.get_context()
    rank, timeout = context.get_world_rank(), timedelta(seconds=seconds)
    os.environ |= {
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(context.get_local_rank()),
        "LOCAL_WORLD_SIZE": str(context.get_local_world_size()),
        "NODE_RANK": str(context.get_node_rank()),
        "ACCELERATE_TORCH_DEVICE": str(ray.train.torch.get_device()),
    }
    store = _served[0] if rank == 0 else dist.TCPStore(LOOPBACK, port, size, is_master=False, timeout=timeout)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
