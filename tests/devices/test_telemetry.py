"""GPM counters, and a window of samples."""

from __future__ import annotations

import time
from dataclasses import asdict

import pynvml
import pytest

from raygpu.devices import nvml
from raygpu.devices.gpm import Gpm, GpmSampler
from raygpu.devices.telemetry import Telemetry
from tests.fakes.nvml import FakeNvml

COUNTERS = {
    pynvml.NVML_GPM_METRIC_SM_UTIL: 71.0,
    pynvml.NVML_GPM_METRIC_SM_OCCUPANCY: 23.0,
    pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: 12.5,
}


def wait_for_samples(telemetry: Telemetry, number: int) -> None:
    deadline = time.monotonic() + 60
    while telemetry.reading().num_samples < number:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_gpm(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml(["NVIDIA H100 80GB HBM3"])
    fake.devices[0].gpm = dict(COUNTERS)
    fake.install(monkeypatch)
    with GpmSampler(fake.uuids[0]) as sampler:
        assert sampler.reading() == Gpm(71.0, 23.0, 12.5)
        del fake.devices[0].gpm[pynvml.NVML_GPM_METRIC_SM_OCCUPANCY]
        assert sampler.reading() == Gpm(71.0, None, 12.5), "a counter that this card lacks"
    assert fake.open_samples == 0, "NVML's memory is given back"
    assert sampler.reading() is None


@pytest.mark.parametrize(
    "missing", ["card", "nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleGet", "nvmlGpmMetricsGet"]
)
def test_gpm_where_there_is_none(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    fake = FakeNvml(["NVIDIA A100"], {missing})
    fake.devices[0].gpm = None if missing == "card" else dict(COUNTERS)
    fake.install(monkeypatch)
    with GpmSampler(fake.uuids[0]) as sampler:
        assert sampler.reading() is None
    assert fake.open_samples == 0
    with GpmSampler("GPU-gone") as sampler:
        assert sampler.reading() is None


def test_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml(["NVIDIA H100 80GB HBM3"])
    device = fake.devices[0]
    device.gpm = dict(COUNTERS)
    fake.install(monkeypatch)
    with Telemetry(fake.uuids[0], interval_s=0.001) as telemetry:
        wait_for_samples(telemetry, 1)
        assert telemetry.reading().sm_util_pct is None, "the interval has not ended"
        device.used_gib, device.power_w, device.temperature_c = 5.0, 450.0, 70.0
        wait_for_samples(telemetry, telemetry.reading().num_samples + 2)
        device.used_gib = 1.0
    window = telemetry.reading()
    assert window.memory_peak_gib == 5.0
    assert window.memory_gib is not None
    assert 1.0 < window.memory_gib < 5.0
    assert window.power_w is not None
    assert 150.0 < window.power_w <= 450.0
    assert window.temperature_peak_c == 70.0
    assert (window.sm_util_pct, window.sm_occupancy_pct, window.dram_bandwidth_pct) == (71.0, 23.0, 12.5)
    assert window.seconds > 0
    assert telemetry.reading() == window, "it has ended"
    assert fake.open_samples == 0


def supported(telemetry: Telemetry) -> set[str]:
    return {name for name, value in asdict(telemetry.reading()).items() if value is not None}


def test_what_does_not_exist_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml(["NVIDIA T4"], {"nvmlDeviceGetPowerUsage"}).install(monkeypatch)
    with Telemetry(fake.uuids[0]) as telemetry:
        wait_for_samples(telemetry, 1)
    assert supported(telemetry) == {
        "seconds",
        "num_samples",
        "util_pct",
        "temperature_peak_c",
        "memory_gib",
        "memory_peak_gib",
    }
    with Telemetry("GPU-gone") as telemetry:
        pass
    assert supported(telemetry) == {"seconds", "num_samples"}
    assert telemetry.reading().num_samples == 0


@pytest.mark.gpu
@pytest.mark.skipif(not nvml.gpus(), reason="no NVIDIA GPU here")
def test_a_window_of_a_real_card() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU that torch can use")
    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    matrix = torch.rand(4096, 4096, device="cuda")
    with Telemetry(uuid) as telemetry:
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            matrix = (matrix @ matrix).clamp(0, 1)
            torch.cuda.synchronize()
    window = telemetry.reading()
    assert window.num_samples >= 5
    assert window.memory_peak_gib is not None
    assert window.memory_peak_gib > 0.1
    if torch.cuda.get_device_capability(0) >= (9, 0) and window.sm_util_pct is not None:
        assert 50 < window.sm_util_pct <= 100
