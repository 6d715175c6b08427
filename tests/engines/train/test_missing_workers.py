"""Lines on workers that a training waits for."""

from __future__ import annotations

import pytest

from raygpu.engines.train import missing_workers
from raygpu.engines.train.missing_workers import MissingWorkers
from raygpu.engines.train.worker_reports import Joined
from raygpu.planning.worker_devices import WorkerDevices

PLACING = WorkerDevices(4, 1, 1, 1.0, 4.0, "nccl", shared=False, simulated=False)
JOINED = Joined(0, 0, 1, 0)


@pytest.fixture
def ray_has(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Return Ray's resources, of which one GPU and no CPU are free; time passes by a minute at each look."""
    resources, clock = {"GPU": 4.0, "CPU": 16.0}, iter(range(0, 60_000, 60))
    monkeypatch.setattr(missing_workers.ray, "cluster_resources", lambda: resources)
    monkeypatch.setattr(missing_workers.ray, "available_resources", lambda: {"GPU": 1.0})
    monkeypatch.setattr(missing_workers.time, "monotonic", lambda: next(clock))
    return resources


def test_a_training_that_gets_no_workers_says_so(ray_has: dict[str, float]) -> None:
    (notice,) = MissingWorkers(PLACING).notices([])
    assert notice.line == (
        "no worker has begun to train yet: wanted are 4 workers with 4 GPUs and 16 CPUs;"
        " Ray has 4 GPUs (1 free) and 16 CPUs (0 free)"
    )


def test_a_training_that_has_lost_a_node_says_so(ray_has: dict[str, float]) -> None:
    missing = MissingWorkers(PLACING)
    assert missing.notices([JOINED]) == []
    ray_has["GPU"] = 2.0
    assert [notice.line[:15] for notice in missing.notices([])] == ["nodes were lost"]


def test_lines_are_a_minute_apart(monkeypatch: pytest.MonkeyPatch, ray_has: dict[str, float]) -> None:
    monkeypatch.setattr(missing_workers.time, "monotonic", iter([0.0, 59.0, 61.0, 61.0, 90.0]).__next__)
    missing = MissingWorkers(PLACING)
    assert [len(missing.notices([])) for _ in range(3)] == [0, 1, 0]
