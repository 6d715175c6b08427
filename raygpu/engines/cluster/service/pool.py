"""The idle workers of a service: processes of Ray that have imported their libraries and belong to no command yet.

A worker serves one command and ends with it, so the pool is filled again whenever it has become smaller.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import ray

from raygpu.engines.cluster import ray_environment
from raygpu.engines.cluster.ray_private_api import prestart_workers

IDLE = "ray::IDLE"
"""Title of a worker that has no task."""
PRELOADED = (
    *("numpy", "torch", "ray.tune", "raygpu.engines.tune.trainable", "raygpu.engines.train.worker"),
    *("raygpu.training.start", "raygpu.training.torch.solo", "raygpu.training.torch.optimizers"),
    *("raygpu.training.fused.dry_run", "raygpu.training.fused.model_array", "torch._decomp"),
    "ray.train.v2._internal.execution.controller.controller",
)
"""Modules that a worker imports before it has a command, none of which loads a user's code or touches a GPU."""
KEEP_S = 30 * 86400
"""Seconds for which Ray keeps an idle worker; the service ends long before."""


def default_size(num_cpus: int) -> int:
    """Return the number of workers for a machine: a sweep's trials and the actor of its stopping rule."""
    return min(max(num_cpus, 2), 8) + 1


@contextmanager
def preloading(size: int) -> Iterator[None]:
    """Set the variables by which a Ray that is started meanwhile imports modules in its workers and keeps them idle.

    Threads that wait for each other give up the processor, as in arrays of trials (`surroundings`): the library of
    threads reads that once, when torch is imported.
    """
    with (
        ray_environment.variable("RAY_preload_python_modules", ",".join(PRELOADED)),
        ray_environment.variable("RAY_num_workers_soft_limit", str(size)),
        ray_environment.variable("OMP_WAIT_POLICY", os.environ.get("OMP_WAIT_POLICY", "passive")),
        ray_environment.variable("RAY_WARN_BLOCKING_GET_INSIDE_ASYNC", "0"),  # as Ray Train sets it
        ray_environment.variable("RAY_ROTATION_MAX_BYTES", os.environ.get("RAY_ROTATION_MAX_BYTES", str(16 * 2**20))),
        ray_environment.variable("RAY_ROTATION_BACKUP_COUNT", os.environ.get("RAY_ROTATION_BACKUP_COUNT", "1")),
    ):
        yield


class Pool:
    """The idle workers of the service that runs in this process."""

    def __init__(self, size: int) -> None:
        self.size = size

    def fill(self) -> int:
        """Ask Ray for the workers that are missing, and return how many are idle now."""
        idle, starting = self.count()
        for node in ray.nodes():
            if node["Alive"] and (missing := self.size - idle - starting) > 0:
                prestart_workers(node, missing, KEEP_S)
                break
        return idle

    def count(self) -> tuple[int, int]:
        """Return the number of idle workers, and of those that are starting."""
        idle = starting = 0
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                words = process.cmdline()
                if words and words[0].strip() == IDLE:
                    idle += 1
                elif any(word.endswith("default_worker.py") for word in words):
                    starting += 1
        return idle, starting
