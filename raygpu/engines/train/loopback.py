"""Ray Train's torch.distributed backend for workers on one machine: the store listens on 127.0.0.1 alone.

Ray's own backend starts torch's store on every network interface, and needs no token. This one leaves the import of
torch, which takes a second, to the workers: the controller has no use for it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import ray.train
from ray.train.backend import Backend, BackendConfig
from ray.train.v2._internal.util import TrainingFramework

LOOPBACK = "127.0.0.1"
SHUTDOWN_S = 30
"""Seconds to wait for the ranks' end."""
_served: list[Any] = []
"""Reference to the store in the process of rank 0, which keeps it alive."""


class LoopbackBackend(Backend):
    """torch.distributed with a store on loopback; the environment variables are those of Ray's own backend."""

    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: LoopbackConfig) -> None:
        """Start the store on rank 0, then join all ranks to one process group."""
        seconds, size = backend_config.timeout_s, len(worker_group)
        port = worker_group.execute_single(0, _serve, size, seconds)
        worker_group.execute(_join, port, size, backend_config.backend, seconds)

    def on_shutdown(self, worker_group: Any, backend_config: LoopbackConfig) -> None:
        """Leave the process group on all ranks."""
        with contextlib.suppress(ray.exceptions.GetTimeoutError):
            ray.get(worker_group.execute_async(_leave), timeout=SHUTDOWN_S)


@dataclass
class LoopbackConfig(BackendConfig):
    """Configuration of Ray Train that selects the loopback backend.

    backend: torch's, such as gloo. timeout_s: seconds that a collective operation may take.
    """

    backend: str
    timeout_s: int

    @property
    def backend_cls(self) -> type[LoopbackBackend]:
        """Return the loopback backend."""
        return LoopbackBackend

    @property
    def train_func_context(self) -> Callable[[], Any]:
        """Return Ray's context of a worker's function, which makes its GPU the current one."""
        return _on_its_gpu

    @property
    def framework(self) -> TrainingFramework:
        """Return the framework's name for Ray's metrics."""
        return TrainingFramework.TORCH


def _on_its_gpu() -> Any:
    from ray.train.torch.config import TorchConfig

    return TorchConfig().train_func_context()


def _serve(size: int, seconds: int) -> int:
    """Start the store on rank 0 and return its port."""
    import torch.distributed as dist

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
    import ray.train.torch
    import torch.distributed as dist

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


def _leave() -> None:
    """Leave the process group, and free the memory that torch keeps; called on every rank at once."""
    from ray.train.torch.config import _shutdown_torch

    _shutdown_torch(destroy_process_group=True)
