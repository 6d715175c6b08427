"""Measure the speed of each device of a training at several batch sizes, in rounds that disturb all devices alike.

Devices that share nothing are measured at the same moments. Those that share a GPU, or the processors of a simulated
one, take turns, every other round in reverse: of two processes that compete for the same cores, the operating system
favours one for seconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from raygpu.engines.cluster.cluster import Cluster
from raygpu.engines.profiling.probe_actor import Fault
from raygpu.engines.profiling.probe_workers import ProbeProcesses, answers
from raygpu.engines.profiling.workload import Workload
from raygpu.errors import RaygpuError, error_line
from raygpu.planning.batch_balancing import Ended, ThroughputCurve, reduce_shares
from raygpu.planning.batch_shares import with_least
from raygpu.planning.worker_devices import WorkerDevices
from raygpu.records.device import Device
from raygpu.training.hyperparameters import OptimizerSettings

LEAD_S = 0.2
"""Seconds between the request for a window and its start, for all processes to receive it."""
Rounds = list[float]
"""Samples/s of one rank with one batch size, by round."""


class DeviceBenchmark:
    """One process for each rank of a training, several on a device that ranks share. Ranks are in device order."""

    def __init__(
        self,
        cluster: Cluster,
        where: WorkerDevices,
        workload: Workload,
        *,
        window_s: float,
        rounds: int,
        parts: int = 1,
        least: int = 1,
    ) -> None:
        """Start the processes. window_s: seconds of one measurement. rounds: number of measurements.

        parts: number of parts in which a device processes its share of a batch, each of `least` samples at least.
        least: smallest number of samples on which the model trains.
        """
        assert workload.splits is not None  # functions and scripts have no batches to split
        self.cluster, self._trial, self._samples_per_epoch = cluster, workload.trial, workload.splits.samples_per_epoch
        self._window_s = window_s
        self._rounds, self._parts, self._least = rounds, parts, least
        self._threads = max(1, int(where.cpus))
        self.places = sorted(rank % len(cluster.devices) for rank in range(where.ranks))
        """Index of each rank's device."""
        devices = [cluster.devices[place] for place in self.places]
        self._turns = by_turns(devices)
        self._on_gpu = [sum(other == device for other in devices) if device.uuid else 1 for device in devices]
        """Number of ranks that take turns on each rank's GPU; 1 for a simulated GPU: processes have their own CPUs."""
        self._probes = [ProbeProcesses(cluster, device, workload) for device in devices]
        self._actors = [probe.start(self._threads) for probe in self._probes]
        self.readings: dict[int, Mapping[str, float]] = {}
        """Last NVML readings while devices worked, by device index."""

    def around(self, sizes: Sequence[int], say: Callable[[str], None]) -> list[ThroughputCurve]:
        """Return each rank's curve of samples/s at these batch sizes, up to the largest that fits in memory.

        say: called with one line for each batch size. Raises RaygpuError if a training fails for another reason, or if
        the first batch does not fit.
        """
        return self._curves(sizes, say, ended="asked")

    def doubled(self, first: int, say: Callable[[str], None]) -> list[ThroughputCurve]:
        """Return each rank's curve of samples/s, with the batch size doubled from `first` on.

        A curve ends where memory or data ends, or where a larger batch gains nothing. Raises RaygpuError as `around`
        does.
        """
        doubled = (first << power for power in range(64))
        return self._curves(doubled, say, ended="data", most=self._samples_per_epoch)

    def _curves(
        self, sizes: Iterable[int], say: Callable[[str], None], *, ended: Ended, most: float = math.inf
    ) -> list[ThroughputCurve]:
        curves, first = [ThroughputCurve() for _ in self._actors], 0
        for batch in sizes:
            first = first or batch
            going = [rank for rank, curve in enumerate(curves) if curve.ended is None]
            if not going or batch > most:
                break
            measured = self.rates(dict.fromkeys(going, batch))
            for rank, rates in measured.items():
                if rates is None:
                    curves[rank].ended = "memory"
                    continue
                curves[rank].tell(batch, median(rates), rates)
                if ended == "asked" and curves[rank].ended == "gain":
                    curves[rank].ended = None
            speeds = ", ".join(
                "out of memory" if rates is None else f"{median(rates):,.0f}" for rates in measured.values()
            )
            say(f"batch {batch}: {speeds} samples/s")
        for curve in curves:
            curve.ended = curve.ended or ended
        if any(not curve.rates for curve in curves):
            raise RaygpuError(f"out of memory with a batch of {first}; begin with a smaller batch_size")
        return curves

    def at(self, shares: Sequence[int], say: Callable[[str], None]) -> tuple[list[int], list[ThroughputCurve]]:
        """Measure each rank with its share of a batch; return the shares that fit, and each rank's curve.

        shares: samples by rank. All are lowered by a fifth while one does not fit. Raises RaygpuError if none fits.
        """
        wanted = list(shares)
        while True:
            rates_by_rank = self.rates(dict(enumerate(wanted)))
            full = next((rank for rank, rates in rates_by_rank.items() if rates is None), None)
            if full is None:
                return wanted, [_curve(share, rates_by_rank[rank] or []) for rank, share in enumerate(wanted)]
            try:
                less = with_least(reduce_shares(wanted), self._least)
            except ValueError as error:
                raise RaygpuError(f"out of memory on rank {full}: {error}") from error
            say(f"out of memory on rank {full} with {wanted[full]} samples; all by a fifth less: {less}")
            wanted = less

    def rates(self, batches: Mapping[int, int]) -> dict[int, Rounds | None]:
        """Return the samples/s of each round, by rank; None for a rank without memory for its batch.

        batches: batch size by rank. Raises RaygpuError if a training fails for another reason.
        """
        full: set[int] = set()
        for rank, batch in batches.items():
            trial = replace(self._trial, hyperparameters=self._settings(batch))
            costs = self._probes[rank].make("process", [self._actors[rank]], [[trial]], self._threads)
            if isinstance(costs, Fault):
                self._require_full(rank, costs)
                full.add(rank)
        measured: dict[int, Rounds] = {rank: [] for rank in batches}
        for number in range(self._rounds):
            for turn in reversed(self._turns) if number % 2 else self._turns:
                ranks = [rank for rank in turn if rank in batches and rank not in full]
                for rank, rate in self._window(ranks).items() if ranks else ():
                    if rate is None:
                        full.add(rank)
                    else:
                        measured[rank].append(rate / self._on_gpu[rank])
        for actor in (self._actors[rank] for rank in batches):
            answers([actor.drop.remote()])
        return {rank: None if rank in full else measured[rank] for rank in batches}

    def _settings(self, batch: int) -> dict[str, Any]:
        """Return the hyper-parameters of a training that takes one of the parts of a device's batch in each step."""
        values = dict(self._trial.hyperparameters)
        size = math.ceil(batch / max(1, min(self._parts, batch // self._least)))
        if (micro := OptimizerSettings.of(values).micro_batch_size) is not None:
            number = max(1, min(math.ceil(size / micro), size // self._least))
            values["micro_batch_size"] = math.ceil(size / number)
        return values | {"batch_size": size}

    def _window(self, ranks: Sequence[int]) -> dict[int, float | None]:
        start_at = time.time() + LEAD_S
        calls = {rank: self._actors[rank].window.remote(start_at, self._window_s, LEAD_S) for rank in ranks}
        time.sleep(LEAD_S + self._window_s)
        self.readings |= {index: reading.metrics() for index, reading in self.cluster.readings().items()}
        rates_by_rank: dict[int, float | None] = {}
        for rank, call in calls.items():
            replies: Any = answers([call])
            if isinstance(replies, Fault):
                self._require_full(rank, replies)
                rates_by_rank[rank] = None
            else:
                rates_by_rank[rank] = replies[0][0].rate
        return rates_by_rank

    def _require_full(self, rank: int, fault: Fault) -> None:
        """Raise RaygpuError unless the fault is an out-of-memory."""
        if not fault.out_of_memory:
            raise RaygpuError(f"the training failed on rank {rank}: {error_line(fault.text)}")

    def close(self) -> None:
        """End all processes."""
        for probe in self._probes:
            probe.close()


def by_turns(devices: Sequence[Device]) -> list[list[int]]:
    """Divide the ranks into turns, so that no two ranks of a turn share a GPU, or the CPUs of a simulated one.

    devices: each rank's device.
    """
    turns: list[list[int]] = []
    seen: dict[str, int] = {}
    for rank, device in enumerate(devices):
        key = device.uuid or device.node_id
        place = seen.get(key, 0)
        seen[key] = place + 1
        if place == len(turns):
            turns.append([])
        turns[place].append(rank)
    return turns


def _curve(share: int, rounds: Rounds) -> ThroughputCurve:
    return ThroughputCurve({share: median(rounds)}, None, {share: rounds})
