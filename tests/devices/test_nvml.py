from __future__ import annotations

import pynvml
import pytest

from raygpu.devices import nvml
from tests.fakes.nvml import FakeNvml


def test_no_driver_means_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", absent)
    assert nvml.gpus() == []


def test_gpus_and_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml(["NVIDIA A100", "NVIDIA T4"]).install(monkeypatch)
    found = nvml.gpus()
    assert [(gpu.index, gpu.name, gpu.memory_gib) for gpu in found] == [
        (0, "NVIDIA A100", 16.0),
        (1, "NVIDIA T4", 16.0),
    ]
    readings = nvml.read([fake.uuids[1], "GPU-gone"])
    assert readings == {fake.uuids[1]: nvml.Reading(memory_gib=2.0, util_pct=41.0, power_w=150.0, temperature_c=61.0)}


def test_a_reading_that_is_not_supported_is_none_and_no_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    unsupported = {"nvmlDeviceGetPowerUsage", "nvmlDeviceGetUtilizationRates"}
    fake = FakeNvml(["NVIDIA T4"], unsupported).install(monkeypatch)
    reading = nvml.read(fake.uuids)[fake.uuids[0]]
    assert reading.power_w is None
    assert reading.util_pct is None
    assert reading.metrics() == {"memory_gib": 1.0, "temperature_c": 61.0}
