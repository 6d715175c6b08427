"""Pools of worker processes, one for each way of sharing; processes are reused as the number of trainings grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raygpu.config.sections import Way
from raygpu.devices.mps import Access
from raygpu.engines.profiling.probe_workers import ProbeProcesses
from raygpu.planning.profiles import Point


class Pools:
    """Worker processes of a benchmark, by way of sharing. mps: MPS daemon of the way `mps`; None without MPS."""

    def __init__(self, probe: ProbeProcesses, mps: Access | None) -> None:
        self.alone: Sequence[Any] = ()
        """Process of the single training, which stays as the reference."""
        self._probe = probe
        self._mps = mps
        self._pools: dict[tuple[Way, int], list[Any]] = {}
        """Processes by way, and by the number of threads if the framework keeps the threads that it started with."""

    @property
    def ways(self) -> list[Way]:
        """Return the ways that have a pool; a way with several pools occurs several times."""
        return [way for way, _ in self._pools]

    def take(self, way: Way, n: int, threads: int) -> tuple[list[Any], list[Any]]:
        """Return the processes for n trainings, and those of them in which trainings have to be made.

        threads: CPU threads of each process. Starts missing processes, and ends those that cannot be reused.
        """
        if way not in ("process", "mps"):
            pool = self._pools.setdefault((way, 0), [])
            if way == "split":  # TensorFlow splits a device before it starts
                self._probe.end(pool)
                pool.clear()
            if not pool:
                pool.append(self._probe.start(threads, yielding=way == "fused"))
            return pool, list(pool)
        key = way, (0 if self._probe.source.kind == "torch" else threads)
        environment = None
        if way == "mps" and self._mps is not None:  # a client keeps the share that it started with
            key, share, memory_gib = ("mps", n), 1 / n, self._probe.device.memory_gib
            environment = self._mps.environment(share, memory_gib and share * memory_gib)
        for other in [k for k in self._pools if k[0] == way and k != key and n > 1]:
            self._end(self._pools.pop(other))
        pool = self._pools.setdefault(key, [])
        new = [self._probe.start(threads, environment=environment) for _ in range(n - len(pool))]
        pool += new
        return pool[:n], new

    def end(self, ways: Sequence[Way]) -> None:
        """End the processes of these ways, except the single training's."""
        for key, pool in self._pools.items():
            if key[0] in ways:
                self._end(pool)
                self._pools[key] = [actor for actor in pool if actor in self.alone]

    def _end(self, pool: Sequence[Any]) -> None:
        self._probe.end([actor for actor in pool if actor not in self.alone])

    def held(self, last: Point) -> int:
        """Return the number of trainings of the last point's way that still hold memory; the single one always does."""
        actors = [actor for key, pool in self._pools.items() if key[0] == last.way for actor in pool]
        if all(actor in self.alone for actor in actors):
            return 1 if last.way == "process" else 0
        return last.n

    def given_back(self, last: Point) -> int:
        """Return the number of held trainings that would end if another way needed their memory."""
        return self.held(last) - (last.way == "process")
