"""MIG instances as devices of their own, and what NVML tells of them."""

from __future__ import annotations

import pynvml
import pytest

from raygpu.devices import nvml
from raygpu.devices.gpm import Gpm
from raygpu.devices.mig import instances, with_instances
from raygpu.devices.nvml import MigInstance
from raygpu.devices.telemetry import Telemetry
from tests.fakes.nvml import FakeInstance, FakeNvml


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """A whole L40S, and an H100 with two instances and a place without one."""
    fake = FakeNvml(["NVIDIA L40S", "NVIDIA H100"])
    fake.devices[1].mig = pynvml.NVML_DEVICE_MIG_ENABLE
    fake.devices[1].instances = [
        FakeInstance("MIG-aaaa", 7, processes={10: 1.5}),
        None,
        FakeInstance("MIG-bbbb", 9, 1, "3g.40gb", used_gib=2.0, total_gib=39.5),
    ]
    return fake.install(monkeypatch)


def test_instances_follow_their_gpu(fake: FakeNvml) -> None:
    found = with_instances(nvml.gpus())
    assert [(gpu.label, gpu.name, gpu.memory_gib) for gpu in found] == [
        ("0", "NVIDIA L40S", 16.0),
        ("1", "NVIDIA H100", 16.0),
        ("1:0", "NVIDIA H100 MIG 1g.5gb", 4.75),
        ("1:2", "NVIDIA H100 MIG 3g.40gb", 39.5),
    ]
    assert found[3].instance == MigInstance(2, fake.uuids[1], 9, 1)
    assert found[3].uuid == "MIG-bbbb"
    assert instances(found[0]) == []


def test_an_instance_without_figures_has_the_memory_of_its_profile(fake: FakeNvml) -> None:
    gpu = nvml.gpus()[1]
    fake.unsupported = {"nvmlDeviceGetMemoryInfo"}
    with pytest.MonkeyPatch.context() as patch:
        fake.install(patch)
        assert [part.memory_gib for part in instances(gpu)] == [4.75, 39.5]
        fake.unsupported |= {"nvmlDeviceGetAttributes"}
        fake.install(patch)
        assert [part.memory_gib for part in instances(gpu)] == [16.0, 16.0]


def test_what_an_instance_does_not_tell_is_none(fake: FakeNvml) -> None:
    with Telemetry("MIG-bbbb") as telemetry:
        pass
    window = telemetry.reading()
    assert window.memory_gib == 2.0
    assert (window.util_pct, window.power_w, window.temperature_peak_c) == (None, None, None)
    assert nvml.clock("MIG-bbbb") == nvml.Clock(None)
    assert nvml.process_memory("MIG-aaaa") == {10: 1.5}
    assert nvml.process_memory("MIG-bbbb") == {}


def test_counters_are_those_of_the_instance(fake: FakeNvml) -> None:
    fake.devices[1].gpm = {pynvml.NVML_GPM_METRIC_SM_UTIL: 90.0}
    part = fake.devices[1].instances[2]
    assert part is not None
    part.gpm = {pynvml.NVML_GPM_METRIC_SM_UTIL: 31.0}
    with Telemetry("MIG-bbbb") as telemetry:
        pass
    window = telemetry.reading()
    assert Gpm(window.sm_util_pct, window.sm_occupancy_pct, window.dram_bandwidth_pct) == Gpm(31.0, None, None)
    assert fake.open_samples == 0


def test_an_instance_that_is_gone_is_left_out(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.unsupported = {"nvmlDeviceGetMaxMigDeviceCount"}
    fake.install(monkeypatch)
    assert [gpu.label for gpu in with_instances(nvml.gpus())] == ["0", "1"]
