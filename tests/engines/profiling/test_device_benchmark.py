"""Batches on which a device's speed is measured, without processes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raygpu.config.source import Source
from raygpu.engines.profiling import device_benchmark
from raygpu.engines.profiling.device_benchmark import DeviceBenchmark
from raygpu.engines.profiling.probe_actor import Fault
from raygpu.engines.profiling.workload import Workload
from raygpu.errors import RaygpuError
from raygpu.planning.worker_devices import WorkerDevices
from raygpu.search.trials import Trial
from tests.models import few

ROOM = 40
"""Samples of a step that a device holds."""


class Probe:
    """In place of ProbeProcesses: a model with BatchNorm, which trains on two samples at least."""

    trained: list[tuple[int, int | None]]

    def __init__(self, *_: Any) -> None: ...

    def start(self, threads: int) -> Any:
        return SimpleNamespace(drop=SimpleNamespace(remote=lambda: None))

    def make(self, way: str, actors: Any, parts: list[list[Trial]], threads: int) -> Any:
        hp = parts[0][0].hyperparameters
        size, micro = hp["batch_size"], hp.get("micro_batch_size")
        self.trained.append((size, micro))
        smallest = size // -(-size // micro) if micro else size
        if smallest < 2:
            return Fault("ValueError: Expected more than 1 value per channel when training", out_of_memory=False)
        return Fault("full", out_of_memory=True) if size > ROOM else [None]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes the benchmark of two devices."""
    monkeypatch.setattr(device_benchmark, "ProbeProcesses", Probe)
    monkeypatch.setattr(device_benchmark, "answers", lambda calls: [])
    monkeypatch.setattr(DeviceBenchmark, "_window", lambda self, ranks: dict.fromkeys(ranks, 100.0))
    Probe.trained = []
    cluster: Any = SimpleNamespace(devices=[SimpleNamespace(uuid=f"GPU-{i}", node_id="n") for i in range(2)])

    def make(parts: int = 1, **hp: int) -> DeviceBenchmark:
        workload = Workload(Source("torch", "a:B", "/"), few(), Trial("t0000", 0, {"batch_size": 8, **hp}), "float32")
        where = WorkerDevices(2, 1, 1, 1.0, 1.0, "gloo", shared=False, simulated=False)
        return DeviceBenchmark(cluster, where, workload, window_s=1.0, rounds=2, parts=parts, least=2)

    return make


@pytest.mark.parametrize(
    ("parts", "batch", "size"), [(1, 2, 2), (2, 4, 2), (2, 3, 3), (8, 4, 2), (8, 5, 3), (4, 16, 4), (8, 2, 2)]
)
def test_no_part_has_fewer_samples_than_the_model_needs(benchmark: Any, parts: int, batch: int, size: int) -> None:
    assert benchmark(parts).rates({0: batch}) == {0: [100.0, 100.0]}
    assert Probe.trained == [(size, None)]


@pytest.mark.parametrize(("batch", "micro", "of"), [(5, 2, 3), (4, 2, 2), (9, 4, 3), (3, 8, 3), (3, 2, 3)])
def test_nor_has_a_micro_batch(benchmark: Any, batch: int, micro: int, of: int) -> None:
    benchmark(micro_batch_size=micro).rates({0: batch})
    assert Probe.trained == [(batch, of)]


def test_shares_that_memory_does_not_hold_are_lowered_to_no_less(benchmark: Any) -> None:
    shares, _ = benchmark().at([50, 2], lambda line: None)
    assert shares == [39, 2]
    full = benchmark()
    full.rates = lambda batches: dict.fromkeys(batches)
    with pytest.raises(RaygpuError, match=r"^out of memory on rank 0: .*each needs 2 at least"):
        full.at([3, 2], lambda line: None)
