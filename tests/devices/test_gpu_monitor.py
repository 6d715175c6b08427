"""Readings of GPUs from time to time."""

from __future__ import annotations

import pynvml
import pytest

from raygpu.devices.gpu_monitor import GpuMonitor
from tests.fakes.nvml import FakeNvml

COUNTERS = {
    pynvml.NVML_GPM_METRIC_SM_UTIL: 71.0,
    pynvml.NVML_GPM_METRIC_SM_OCCUPANCY: 23.0,
    pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: 12.5,
}


def test_gpm_s_means_come_from_the_second_reading_on(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml(["NVIDIA H100 80GB HBM3", "NVIDIA A100"])
    fake.devices[0].gpm = dict(COUNTERS)
    fake.install(monkeypatch)
    monitor = GpuMonitor()
    first = monitor.read(fake.uuids)
    assert {reading.sm_util_pct for reading in first.values()} == {None}
    assert "sm_util_pct" not in first[fake.uuids[0]].metrics()
    second = monitor.read(fake.uuids)
    assert second[fake.uuids[0]].metrics() == {
        "memory_gib": 1.0,
        "util_pct": 40.0,
        "power_w": 150.0,
        "temperature_c": 61.0,
        "sm_util_pct": 71.0,
        "sm_occupancy_pct": 23.0,
        "dram_bandwidth_pct": 12.5,
    }
    assert second[fake.uuids[1]].sm_util_pct is None


def test_a_gpu_that_is_gone_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml(["NVIDIA A100"]).install(monkeypatch)
    assert GpuMonitor().read(["GPU-gone"]) == {}
