from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

import psutil
import pynvml
import pytest

import raygpu
from raygpu.devices import nvml
from raygpu.devices.host import described
from tests.fakes.nvml import FakeNvml


def test_one_door() -> None:
    package = Path(raygpu.__file__).parent
    doors = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Import) and any(alias.name == "pynvml" for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and node.module == "pynvml")
    }
    assert doors == {"devices/nvml.py", "devices/gpm.py", "devices/mig.py"}


def test_no_driver_means_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", absent)
    assert nvml.gpus() == []
    assert nvml.driver_version() is None
    assert nvml.read(["GPU-a"]) == {}
    assert nvml.memory("GPU-a") is None
    assert nvml.process_memory("GPU-a") is None


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


def test_what_a_card_is(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml(["A", "B", "C"])
    fake.devices[1].compute_mode = pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    fake.devices[1].mig = pynvml.NVML_DEVICE_MIG_DISABLE
    fake.devices[2].compute_mode = pynvml.NVML_COMPUTEMODE_PROHIBITED
    fake.devices[2].mig = pynvml.NVML_DEVICE_MIG_ENABLE
    fake.devices[2].capability = (9, 0)
    fake.install(monkeypatch)
    found = nvml.gpus()
    assert [gpu.compute_mode for gpu in found] == ["default", "exclusive-process", "prohibited"]
    assert [gpu.mig for gpu in found] == [None, False, True]
    assert [gpu.capability for gpu in found] == [(8, 0), (8, 0), (9, 0)]
    assert nvml.driver_version() == "580.65.06"


def test_a_gpu_that_shares_the_host_s_memory_has_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml(["NVIDIA GB10"], {"nvmlDeviceGetMemoryInfo"}).install(monkeypatch)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=120 * nvml.GIB, available=nvml.GIB))
    (gpu,) = nvml.gpus()
    assert gpu.memory_gib == 120.0
    assert described([gpu]).device_type == "NVIDIA GB10, 120 GiB"
    assert described([gpu]).free_gib is None
    assert nvml.memory(fake.uuids[0]) is None
    assert nvml.read(fake.uuids)[fake.uuids[0]].memory_gib is None


def test_what_a_card_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    unsupported = {"nvmlDeviceGetComputeMode", "nvmlDeviceGetCudaComputeCapability", "nvmlSystemGetDriverVersion"}
    FakeNvml(["A"], unsupported).install(monkeypatch)
    (gpu,) = nvml.gpus()
    assert (gpu.compute_mode, gpu.capability) == (None, None)
    assert nvml.driver_version() is None


def test_reserved_memory_is_neither_used_nor_free(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml(["A"]).install(monkeypatch)
    found = nvml.memory(fake.uuids[0])
    assert found == nvml.Memory(total_gib=16.0, free_gib=14.75, reserved_gib=0.25)
    assert found.used_gib == 1.0
    fake.unsupported = {"memory_v2"}  # a driver of before 510
    older = nvml.memory(fake.uuids[0])
    assert older == nvml.Memory(total_gib=16.0, free_gib=15.0, reserved_gib=None)
    assert older.used_gib == 1.0
    assert nvml.memory("GPU-gone") is None


def test_memory_by_process(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml(["A"]).install(monkeypatch)
    uuid, device = fake.uuids[0], fake.devices[0]
    assert nvml.process_memory(uuid) == {}
    device.processes = {10: 1.5, 11: None}
    device.mps_processes = {10: 1.5, 12: 0.5, 13: None}
    assert nvml.process_memory(uuid) == {10: 1.5, 11: None, 12: 0.5, 13: None}


def test_memory_by_process_where_it_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    lists = {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3"}
    fake = FakeNvml(["A"], lists).install(monkeypatch)
    assert nvml.process_memory(fake.uuids[0]) is None


@pytest.mark.gpu
@pytest.mark.skipif(not nvml.gpus(), reason="no NVIDIA GPU here")
def test_a_real_card() -> None:
    for gpu in nvml.gpus():
        room = nvml.memory(gpu.uuid)
        assert room is not None
        assert 0 < room.free_gib <= room.total_gib == gpu.memory_gib
        assert 0 <= room.used_gib < room.total_gib
        assert gpu.compute_mode is not None
        assert gpu.capability is not None
        assert nvml.driver_version()
        assert all(gib is None or 0 <= gib <= room.total_gib for gib in (nvml.process_memory(gpu.uuid) or {}).values())


def test_the_newest_cuda_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml(["NVIDIA A100"]).install(monkeypatch)
    assert nvml.driver_cuda_version() == "13.0"
    FakeNvml([], unsupported={"nvmlInit"}).install(monkeypatch)
    assert nvml.driver_cuda_version() is None


def test_a_clock_and_why_it_is_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml(["NVIDIA A100"]).install(monkeypatch)
    assert nvml.clock(fake.uuids[0]) == nvml.Clock(1410)
    fake.devices[0].clock_reasons = 0x1 | 0x4 | 0x20  # idle, power, temperature
    assert nvml.clock(fake.uuids[0]).lowered_by == ("power limit", "temperature")
    FakeNvml(["NVIDIA A100"], unsupported={"nvmlDeviceGetClockInfo"}).install(monkeypatch)
    assert nvml.clock(fake.uuids[0]).mhz is None
    assert nvml.clock("GPU-gone") == nvml.Clock(None)
