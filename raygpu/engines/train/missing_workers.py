"""Notices while a training has not got its workers: Ray Train asks for them again without end, and without a line."""

from __future__ import annotations

import time
from collections.abc import Sequence

import ray

from raygpu.engines.train.worker_reports import Joined, Notice, WorkerReport
from raygpu.planning.worker_devices import WorkerDevices

AGAIN_S = 60.0
"""Seconds without a worker before a notice, and between two notices."""


class MissingWorkers:
    """Watch over a training's start, and over the loss of nodes that have its workers."""

    def __init__(self, placing: WorkerDevices) -> None:
        self._placing = placing
        self._next = time.monotonic() + AGAIN_S
        self._has_joined = False

    def notices(self, reports: Sequence[WorkerReport]) -> list[Notice]:
        """Return a notice, once in AGAIN_S seconds, if no rank has begun to train, or if Ray has too few GPUs or CPUs
        alive for all workers. reports: the new ones of the workers."""
        self._has_joined = self._has_joined or any(isinstance(report, Joined) for report in reports)
        if time.monotonic() < self._next:
            return []
        self._next = time.monotonic() + AGAIN_S
        workers = self._placing.workers
        wanted = {"GPU": workers * self._placing.gpus, "CPU": workers * self._placing.cpus}
        alive, free = ray.cluster_resources(), ray.available_resources()
        is_short = any(alive.get(name, 0.0) + 1e-3 < amount for name, amount in wanted.items())
        if self._has_joined and not is_short:
            return []
        there = " and ".join(f"{alive.get(name, 0.0):g} {name}s ({free.get(name, 0.0):g} free)" for name in wanted)
        what = f"{workers} worker{'s' * (workers != 1)} with {wanted['GPU']:g} GPUs and {wanted['CPU']:g} CPUs"
        state = "nodes were lost" if self._has_joined else "no worker has begun to train yet"
        return [Notice(f"{state}: wanted are {what}; Ray has {there}")]
