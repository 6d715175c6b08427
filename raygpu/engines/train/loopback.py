"""Ray Train's torch.distributed for the workers of one machine: their store listens on 127.0.0.1 alone.

Ray's own starts torch's store where every interface reaches it, and asks nobody for a token.
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
"""In the process of rank 0: the store lives as long as somebody holds it."""


class LoopbackBackend(TorchConfig().backend_cls):  # type: ignore[misc]
    """The group is made, and its variables set, as Ray's backend does it."""

    def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
        seconds, size = backend_config.timeout_s, len(worker_group)
        port = worker_group.execute_single(0, _serve, size, seconds)
        worker_group.execute(_join, port, size, backend_config.backend, seconds)


class LoopbackConfig(TorchConfig):
    @property
    def backend_cls(self) -> type[LoopbackBackend]:
        return LoopbackBackend


def _serve(size: int, seconds: int) -> int:
    """On rank 0: start the store; its port."""
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
    """On every rank at once."""
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
