"""A sweep's use of its GPUs: shares, samples, and what they cost."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from raygpu.records.device import Device
from raygpu.records.gpu_use import RATE_S, GpuUse


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which a test sets."""
    moment = [100.0]
    monkeypatch.setattr("raygpu.records.gpu_use.time", SimpleNamespace(monotonic=lambda: moment[0]))
    return moment


def devices(number: int) -> list[Device]:
    return [Device(index, "node", str(index), "T4", rgu=2.0) for index in range(number)]


def test_a_share_counts_once_its_gpu_is_known() -> None:
    use = GpuUse(devices(2))
    use.hold("a", 0.5)
    use.hold("b", 4.0)
    assert use.shares() == {0: 0.0, 1: 0.0}
    use.locate("a", 1)
    use.locate("b", 0)
    use.locate("gone", 0)
    assert use.shares() == {0: 1.0, 1: 0.5}, "of a trial on several GPUs, one whole one"
    use.release("a")
    assert use.shares() == {0: 1.0, 1: 0.0}


def test_the_only_gpu_is_known_at_once() -> None:
    use = GpuUse(devices(1))
    use.hold("a", 0.25)
    assert use.shares() == {0: 0.25}


def test_a_charge_counts_from_the_last_one(now: list[float]) -> None:
    use = GpuUse(devices(1))
    use.hold("a", 0.5)
    now[0] += 3600
    assert use.charge("a", 0, 0.5) == pytest.approx(1.0), "half of 2 RGU, for an hour"
    now[0] += 360
    assert use.charge("a", 0, 0.5) == pytest.approx(0.1)
    assert use.charge("a", None, 0.5) is None


def test_the_mean_of_a_reading_is_over_all_moments() -> None:
    use = GpuUse(devices(2))
    use.read(0, {"memory_gib": 1.0, "util_pct": 50.0})
    use.read(0, {"memory_gib": 4.0})
    assert (use.mean_reading(0, "memory_gib"), use.mean_reading(0, "util_pct")) == (2.5, 50.0)
    assert use.mean_reading(1, "memory_gib") is None


def test_throughput_of_the_last_seconds_and_of_the_run(now: list[float]) -> None:
    use = GpuUse(devices(2))
    assert use.recent_rate(0) is None
    use.add(0, 500)
    now[0] += RATE_S / 2
    use.add(0, 1000)
    assert use.recent_rate(0) == 1500 / RATE_S
    now[0] += RATE_S * 0.75
    assert use.recent_rate(0) == 1000 / RATE_S
    now[0] += RATE_S
    assert use.recent_rate(0) is None
    assert use.throughput(10.0) == {0: 150.0, 1: None}
