"""A probe inside a sweep: which way its trainings are fastest, found out in a part of the sweep's own time.

probing = Probing(cluster, source, splits, trial, "float32", most=64)
climb = probing.measure(["process", "fused"], work=1e7, mps=True)
climb.points
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raygpu.config.sections import Precision, Way
from raygpu.experiment import Source, Splits
from raygpu.planning.cost_model import WORKER_S
from raygpu.search.trials import Trial
from raygpu.training.hyperparameters import batch_size

if TYPE_CHECKING:  # Ray takes seconds to import
    from raygpu.engines.cluster.cluster import Cluster
    from raygpu.engines.profiling.concurrency_benchmark import Climb

BUDGET = 0.25
"""Part of the predicted sweep's time that a probe may take."""
WINDOW_S = 0.3
ROUNDS = 3
PATIENCE = 2
"""Most rounds where they differ much, as a multiple of ROUNDS; each point is measured again once at most."""
WIDTHS = (8, 64)
"""Members of the arrays that a probe tries: its answer is which way, and an array measures its own width."""
STEPS = 8
"""Least number of steps in an array's measurement."""
MOST_PACKED = 8
"""Processes that a probe of a GPU tries."""
BEATEN = "packed:"
"""Prefix of the note that says that no number of processes can be the fastest way."""


@dataclass(frozen=True, slots=True)
class Probing:
    """The training to measure, on the first of the cluster's devices."""

    cluster: Cluster
    source: Source
    splits: Splits
    trial: Trial
    precision: Precision
    most: int
    """The sweep's trainings that may run at once."""

    def measure(self, ways: Sequence[Way], work: float, *, mps: bool) -> Climb:
        """One training, an array and, as long as it repays, more of both.

        work: training samples of the whole sweep. mps: whether to measure processes under MPS too, where it is to be
        had.
        """
        from raygpu.engines.cluster.mps_daemons import daemons
        from raygpu.engines.profiling.concurrency_benchmark import Climb
        from raygpu.engines.profiling.probe_workers import Probe

        started = time.monotonic()
        device = self.cluster.devices[0]
        what = self.source, self.splits, self.trial, self.precision
        probe = Probe(self.cluster, device, *what)
        refusals: list[str] = []
        with daemons([device], refusals.append, wanted=mps and self.cluster.local) as under:
            access = under.access.get(device.uuid or "")
            all_ways: list[Way] = [*ways, "mps"] if access is not None else [*ways]
            climb = Climb(
                probe,
                all_ways,
                most=self.most,
                rounds=ROUNDS,
                window_s=WINDOW_S,
                mps=access,
                patience=PATIENCE,
                again=1,
            )
            try:
                if climb.begin():
                    self._measure(climb, all_ways, work, started, probe.num_cpus)
            finally:
                probe.close()  # before the daemon
        climb.notes += [f"mps: not measured: {reason}" for reason in refusals]
        return climb

    def _measure(self, climb: Climb, ways: Sequence[Way], work: float, started: float, num_cpus: int) -> None:
        """One alone, an array, a wider one and more processes, for as long as they may change the answer."""

        def repays(seconds: float) -> bool:
            spent_s = time.monotonic() - started + seconds
            return spent_s <= BUDGET * (work / max(_rates(climb, ways).values()) + WORKER_S)

        climb.measure({"process": 1})
        if not climb.measurable or not repays(0.0):
            return
        array = 0.0
        for width in WIDTHS if "fused" in ways else ():
            samples = STEPS * min(self.most, width) * batch_size(self.trial.hyperparameters)
            if array and (self.most <= WIDTHS[0] or not repays(samples / array)):
                break
            climb.measure({"fused": min(self.most, width)})
            array = max(_rates(climb, ["fused"]).values(), default=0.0)
            if not climb.measurable or not array:
                break
        numbers = [num_cpus] if self.cluster.devices[0].uuid is None else [2, 4, MOST_PACKED]
        for n in sorted({min(n, self.most) for n in numbers} - {1}):
            packed = {n: rate for (_, n), rate in _rates(climb, ["process"]).items()}
            # At best no process takes work from the others.
            if array > numbers[-1] * packed.get(1, array):
                climb.notes.append(f"{BEATEN} {numbers[-1]} processes cannot do as much as one array")
                return
            last = max(packed, default=1)
            failed = any(p.fault is not None for p in climb.points if p.way == "process")
            if failed or not climb.measurable or packed.get(last, 0.0) < max(packed.values()):
                return
            if last > 1 and not repays(WORKER_S):
                climb.notes.append(f"process: {n} at once not tried: a quarter of the sweep's time was over")
                return
            climb.measure({way: n for way in ways if way != "fused"})


def _rates(climb: Climb, ways: Sequence[Way]) -> dict[tuple[Way, int], float]:
    """Samples/s of each point; of one in doubt too: what its windows measured tells how long others will take."""
    return {(p.way, p.n): p.samples_per_s for p in climb.points if p.samples_per_s and p.way in ways}
