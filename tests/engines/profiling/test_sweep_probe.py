"""What a probe inside a sweep measures, without processes."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from raygpu.engines.profiling.sweep_probe import SweepProbe, numbers_tried
from raygpu.planning.cost_model import Size
from raygpu.planning.profiles import Point


class Benchmark:
    """Measurements of a device on which each way takes as many trainings as there are."""

    measurable = True

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.notes: list[str] = []

    def measure(self, numbers: dict[Any, int]) -> None:
        for way, n in numbers.items():
            assert (way, n) not in [(point.way, point.n) for point in self.points], "measured once"
            self.points.append(Point(way, n, 1000.0 * n, float(n)))


@pytest.mark.parametrize(
    ("uuid", "num_cpus", "members", "processes", "split"),
    [
        (None, 16, 8, [1, 16], [8]),
        (None, 4, 8, [1, 4], [4]),
        ("GPU-1", 16, 3, [1, 2, 4, 8], [2, 3]),
        ("GPU-1", 16, 1, [1, 2, 4, 8], []),
    ],
)
def test_trials_of_one_process_are_bound_by_a_generation(
    uuid: str | None, num_cpus: int, members: int, processes: list[int], split: list[int]
) -> None:
    cluster: Any = SimpleNamespace(devices=[SimpleNamespace(uuid=uuid)])
    workload: Any = None
    benchmark: Any = Benchmark()
    probing = SweepProbe(cluster, workload, Size(trials=60, epochs=20, at_once=60, members=members))
    probing._measure(benchmark, ["process", "split"], work=1e9, started=time.monotonic(), num_cpus=num_cpus)
    assert [point.n for point in benchmark.points if point.way == "process"] == processes
    assert [point.n for point in benchmark.points if point.way == "split"] == split


@pytest.mark.parametrize(
    ("spent_s", "ended_s"),
    [(0.0, {}), (55.0, {"process": 51.0}), (120.0, {"process": 101.0, "split": 101.0})],
    ids=["not", "after two", "after one"],
)
def test_a_probe_notes_the_time_that_ended_it(spent_s: float, ended_s: dict[str, float]) -> None:
    """A quarter of 404 s with one process at a time, and of 204 s with two."""
    cluster: Any = SimpleNamespace(devices=[SimpleNamespace(uuid="GPU-1")])
    workload: Any = None
    benchmark: Any = Benchmark()
    probing = SweepProbe(cluster, workload, Size(trials=60, epochs=20, at_once=60))
    started = time.monotonic() - spent_s
    probing._measure(benchmark, ["process", "split"], work=4e5, started=started, num_cpus=16)
    assert probing.ended_s == pytest.approx(ended_s)
    assert bool(benchmark.notes) == (list(ended_s) == ["process"])


@pytest.mark.parametrize(
    ("at_once", "num_cpus", "on_gpu", "numbers"),
    [
        (60, 16, True, {"process": [1, 2, 4, 8], "fused": [8, 60], "split": [2, 4, 8], "mps": [2, 4, 8]}),
        (3, 16, True, {"process": [1, 2, 3], "fused": [3], "split": [2, 3], "mps": [2, 3]}),
        (1, 16, True, {"process": [1], "fused": [1]}),
        (60, 1, False, {"process": [1], "fused": [8, 60]}),
    ],
)
def test_only_what_is_tried_can_be_missed(at_once: int, num_cpus: int, on_gpu: bool, numbers: Any) -> None:
    size = Size(trials=60, epochs=20, at_once=at_once)
    assert numbers_tried(["process", "fused", "split", "mps"], size, num_cpus, on_gpu=on_gpu) == numbers
