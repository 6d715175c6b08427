"""Probe inside a sweep: find the fastest way to share the device, within a part of the sweep's own time.

probing = SweepProbe(cluster, Workload(source, splits, trial, "float32"), Size(trials=64, epochs=20, at_once=64))
benchmark = probing.measure(["process", "fused", "mps"], work=1e7)
benchmark.points
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from raygpu.config.sections import Way
from raygpu.engines.profiling.workload import Repetitions, Workload
from raygpu.planning.cost_model import Size
from raygpu.planning.profile_coverage import LEAST, array_outdoes
from raygpu.planning.profiles import BEATEN, NOT_TRIED, Point
from raygpu.planning.schedule import WORKER_S
from raygpu.training.hyperparameters import OptimizerSettings

if TYPE_CHECKING:  # Ray takes seconds to import
    from raygpu.engines.cluster.cluster import Cluster
    from raygpu.engines.profiling.concurrency_benchmark import ConcurrencyBenchmark

BUDGET = 0.25
"""Maximum share of the predicted sweep's time that a probe may take."""
WINDOW_S = 0.3
ROUNDS = 3
PATIENCE = 2
"""Maximum number of rounds if they differ much, as a multiple of ROUNDS; a point is measured again at most once."""
WIDTHS = (8, 64)
"""Widths of the arrays that a probe tries, to choose the way; each array later measures its own best width."""
STEPS = 8
"""Minimum number of steps in an array's measurement."""
MOST_PACKED = 8
"""Maximum number of processes that a probe of a GPU tries."""


@dataclass(frozen=True, slots=True)
class SweepProbe:
    """Training to measure on the first of the cluster's devices."""

    cluster: Cluster
    workload: Workload
    size: Size
    """Amount of the sweep's training."""
    time_budget_s: float = math.inf
    """Seconds after which the sweep ends."""
    worth: float = 1.0
    """Ratio of speeds, arrays over processes, from which arrays are taken."""
    ended_s: dict[Way, float] = field(default_factory=dict)
    """Seconds that the probe could take, by each way whose measurement they ended; filled by `measure`."""

    def measure(self, ways: Sequence[Way], work: float) -> ConcurrencyBenchmark:
        """Measure one training alone, an array and, while the sweep repays it, wider arrays and more processes.

        ways: ways of sharing to measure; processes under MPS if MPS is available. work: training samples of the whole
        sweep.
        """
        from raygpu.engines.cluster.mps_daemons import daemons
        from raygpu.engines.profiling.concurrency_benchmark import ConcurrencyBenchmark
        from raygpu.engines.profiling.probe_workers import ProbeProcesses

        started = time.monotonic()
        device = self.cluster.devices[0]
        probe = ProbeProcesses(self.cluster, device, self.workload)
        refusals: list[str] = []
        with daemons([device], refusals.append, wanted="mps" in ways and self.cluster.local) as under:
            access = under.access.get(device.uuid or "")
            all_ways = [way for way in ways if way != "mps" or access is not None]
            repetitions = Repetitions(WINDOW_S, ROUNDS, patience=PATIENCE, again=1)
            most = max(self.size.of(way) for way in all_ways)
            benchmark = ConcurrencyBenchmark(probe, all_ways, repetitions, most=most, mps=access)
            try:
                if benchmark.begin():
                    self._measure(benchmark, all_ways, work, started, probe.num_cpus)
            finally:
                probe.close()  # before the daemon
        benchmark.notes += [f"mps: not measured: {reason}" for reason in refusals]
        return benchmark

    def _measure(
        self, benchmark: ConcurrencyBenchmark, ways: Sequence[Way], work: float, started: float, num_cpus: int
    ) -> None:
        """Measure one training, an array, a wider one and more processes, while they may change the answer."""

        def repays(seconds: float) -> bool:
            """Return whether `seconds` more of probing stay within BUDGET of the predicted sweep."""
            return time.monotonic() - started + seconds <= limit_s()

        def limit_s() -> float:
            """Return the seconds that the probe may take, by what it has measured so far."""
            return most_s(benchmark.points, ways, work, self.time_budget_s)

        benchmark.measure({"process": 1})
        if not benchmark.measurable:
            return
        if not repays(0.0):
            self.ended_s.update(dict.fromkeys(ways, limit_s()))
            return
        array, members = 0.0, self.size.of("fused")
        for width in WIDTHS if "fused" in ways else ():
            batch_size = OptimizerSettings.of(self.workload.trial.hyperparameters).batch_size
            samples = STEPS * min(members, width) * batch_size
            if array and (members <= WIDTHS[0] or not repays(samples / array)):
                break
            benchmark.measure({"fused": min(members, width)})
            array = max(_rates(benchmark.points, ["fused"]).values(), default=0.0)
            if not benchmark.measurable or not array:
                break
        on_gpu = self.cluster.devices[0].uuid is not None
        numbers = numbers_tried(["process"], self.size, num_cpus, on_gpu=on_gpu)["process"]
        for n in numbers[1:]:
            packed = {n: rate for (_, n), rate in _rates(benchmark.points, ["process"]).items()}
            if array_outdoes(benchmark.points, members, numbers[-1], self.worth):
                benchmark.notes.append(f"{BEATEN} {numbers[-1]} processes cannot do as much as one array")
                return
            last = max(packed, default=1)
            failed = any(p.fault is not None for p in benchmark.points if p.way == "process")
            if failed or not benchmark.measurable or packed.get(last, 0.0) < max(packed.values()):
                return
            if last > 1 and not repays(WORKER_S):
                benchmark.notes.append(f"process: {n} {NOT_TRIED}: a quarter of the sweep's time was over")
                self.ended_s["process"] = limit_s()
                return
            numbers_by_way = {way: min(n, self.size.of(way)) for way in ways if way != "fused"}
            measured = {(point.way, point.n) for point in benchmark.points}
            benchmark.measure({way: of for way, of in numbers_by_way.items() if of > 1 and (way, of) not in measured})


def numbers_tried(ways: Iterable[Way], size: Size, num_cpus: int, *, on_gpu: bool) -> dict[Way, list[int]]:
    """Return the numbers of trainings at once that a probe tries in each way while the sweep repays it.

    A way that no number tells from one training is left out. on_gpu: whether the device is a GPU; of a simulated one
    all CPUs are tried.
    """
    most = size.of("process")
    packed = sorted({1, *(min(n, most) for n in ([2, 4, MOST_PACKED] if on_gpu else [num_cpus]))})
    by_way = {way: {min(n, size.of(way)) for n in (WIDTHS if way == "fused" else packed)} for way in ways}
    tried = {way: sorted(n for n in numbers if n >= LEAST.get(way, 1)) for way, numbers in by_way.items()}
    return {way: numbers for way, numbers in tried.items() if numbers}


def most_s(points: Iterable[Point], ways: Sequence[Way], work: float, time_budget_s: float = math.inf) -> float:
    """Return the seconds that a probe may take: BUDGET of the sweep's time in the fastest of these ways so far.

    work: training samples of the whole sweep. time_budget_s: seconds after which the sweep ends.
    """
    return BUDGET * (min(work / max(_rates(points, ways).values()), time_budget_s) + WORKER_S)


def _rates(points: Iterable[Point], ways: Sequence[Way]) -> dict[tuple[Way, int], float]:
    """Return each point's samples/s by way and number, points in doubt included: they too predict the probe's time."""
    return {(p.way, p.n): p.samples_per_s for p in points if p.samples_per_s and p.way in ways}
