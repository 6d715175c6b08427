"""How fast each device of a training is alone, at growing batches: all measured at the same moments."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from raygpu.balancing import Curve, lowered
from raygpu.engines.cluster import Cluster
from raygpu.engines.probe import Probe, answers
from raygpu.engines.probe_actor import Fault
from raygpu.engines.production import Placing
from raygpu.errors import RaygpuError, last_line
from raygpu.experiment import Source, Splits
from raygpu.sections import Precision
from raygpu.trials import Trial

ROUNDS = 3
"""Of which a rate is the median."""
LEAD_S = 0.2
"""Between now and the start of a window, until when all processes have heard of it."""


class Pace:
    """A process on each device of a training, or several where workers share one. Ranks are in the devices' order."""

    def __init__(
        self,
        cluster: Cluster,
        where: Placing,
        source: Source,
        splits: Splits,
        trial: Trial,
        precision: Precision,
        window_s: float,
    ) -> None:
        """window_s: of one measurement."""
        self.cluster, self._trial, self._window_s, self._num_train = cluster, trial, window_s, splits.num_train
        self._threads = max(1, int(where.cpus))
        self.places = sorted(rank % len(cluster.devices) for rank in range(where.ranks))
        """Each rank's device, by its index."""
        self._probes = [
            Probe(cluster, cluster.devices[place], source, splits, trial, precision) for place in self.places
        ]
        self._actors = [probe.start(self._threads) for probe in self._probes]
        self.readings: dict[int, Mapping[str, float]] = {}
        """What NVML told last while devices worked, by device."""

    def climb(self, first: int, say: Callable[[str], None]) -> list[Curve]:
        """Each rank's curve, its batch doubled from `first` on until memory ends or the gain does.

        Raises RaygpuError where a training fails for another reason, or the first batch does not fit.
        """
        curves = [Curve() for _ in self._actors]
        batch = first
        while going := [rank for rank, curve in enumerate(curves) if curve.ended is None]:
            if batch > self._num_train:
                for rank in going:
                    curves[rank].ended = "data"
                break
            rates = self.rates(dict.fromkeys(going, batch))
            for rank, rate in rates.items():
                if rate is None:
                    curves[rank].ended = "memory"
                else:
                    curves[rank].tell(batch, rate)
            told = ", ".join("out of memory" if rate is None else f"{rate:,.0f}" for rate in rates.values())
            say(f"batch {batch}: {told} samples/s")
            batch *= 2
        if any(not curve.rates for curve in curves):
            raise RaygpuError(f"out of memory with a batch of {first}; begin with a smaller batch_size")
        return curves

    def at(self, shares: Sequence[int], say: Callable[[str], None]) -> tuple[list[int], list[Curve]]:
        """Each rank's speed with its share; all shares are lowered by a fifth while one does not fit."""
        wanted = list(shares)
        while True:
            rates = self.rates(dict(enumerate(wanted)))
            if all(rate is not None for rate in rates.values()):
                break
            full = next(rank for rank, rate in rates.items() if rate is None)
            try:
                less = lowered(wanted)
            except ValueError as error:
                raise RaygpuError(f"out of memory on rank {full}: {error}") from error
            say(f"out of memory on rank {full} with {wanted[full]} samples; all by a fifth less: {less}")
            wanted = less
        return wanted, [Curve({share: rates[rank] or 0.0}) for rank, share in enumerate(wanted)]

    def rates(self, batches: Mapping[int, int]) -> dict[int, float | None]:
        """Samples/s of these ranks with these batches, at the same time; None of one that has no memory for it."""
        full: set[int] = set()
        for rank, batch in batches.items():
            hp = {**self._trial.hyperparameters, "batch_size": batch}
            trial = replace(self._trial, hyperparameters=hp)
            made = self._probes[rank].make("process", [self._actors[rank]], [[trial]], self._threads)
            if isinstance(made, Fault):
                self._require_full(rank, made)
                full.add(rank)
        ranks = [rank for rank in batches if rank not in full]
        measured: dict[int, list[float]] = {rank: [] for rank in ranks}
        for _ in range(ROUNDS):
            for rank, rate in self._window(ranks).items():
                if rate is None:
                    full.add(rank)
                else:
                    measured[rank].append(rate)
            ranks = [rank for rank in ranks if rank not in full]
        for actor in (self._actors[rank] for rank in batches):
            answers([actor.drop.remote()])
        return {rank: None if rank in full else median(measured[rank]) for rank in batches}

    def _window(self, ranks: Sequence[int]) -> dict[int, float | None]:
        start_at = time.time() + LEAD_S
        calls = {rank: self._actors[rank].window.remote(start_at, self._window_s) for rank in ranks}
        time.sleep(LEAD_S + self._window_s)
        self.readings |= {index: reading.metrics() for index, reading in self.cluster.readings().items()}
        found: dict[int, float | None] = {}
        for rank, call in calls.items():
            told: Any = answers([call])
            if isinstance(told, Fault):
                self._require_full(rank, told)
                found[rank] = None
            else:
                found[rank] = told[0][0].rate
        return found

    def _require_full(self, rank: int, fault: Fault) -> None:
        """Raises RaygpuError of a fault that is not for want of memory."""
        if not fault.out_of_memory:
            raise RaygpuError(f"the training failed on rank {rank}: {last_line(fault.text)}")

    def close(self) -> None:
        for probe in self._probes:
            probe.close()
