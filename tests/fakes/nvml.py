"""NVML with as many GPUs as a test wants, behind the functions of `pynvml` that raygpu calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

GIB = 2**30
OF_WHOLE_GPUS = {
    "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetTemperature", "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetComputeMode",
    "nvmlDeviceGetMigMode", "nvmlGpmQueryDeviceSupport", "nvmlGpmSampleGet",
}  # fmt: skip
"""Functions that do not take the handle of a MIG instance."""


@dataclass
class FakeInstance:
    """A MIG instance's state."""

    uuid: str
    gpu_instance: int
    compute_instance: int = 0
    profile: str = "1g.5gb"
    used_gib: float = 0.5
    total_gib: float = 4.75
    processes: dict[int, float | None] = field(default_factory=dict)
    gpm: dict[int, float] | None = None


@dataclass
class FakeDevice:
    """A GPU's state, to be changed by the test as it goes on."""

    name: str
    uuid: str
    used_gib: float
    total_gib: float = 16.0
    reserved_gib: float = 0.25
    """Of version 2 of the memory's figures; version 1 counts it as used, and then `used_gib` includes it."""
    capability: tuple[int, int] = (8, 0)
    compute_mode: int = pynvml.NVML_COMPUTEMODE_DEFAULT
    mig: int | None = None
    """None: a card without MIG."""
    instances: list[FakeInstance | None] = field(default_factory=list)
    """MIG instances by NVML's index; None for an index without one."""
    processes: dict[int, float | None] = field(default_factory=dict)
    """GiB by pid; None for a process without a figure."""
    mps_processes: dict[int, float | None] = field(default_factory=dict)
    util_pct: float = 40.0
    power_w: float = 150.0
    temperature_c: float = 61.0
    clock_mhz: int = 1410
    clock_reasons: int = 0
    gpm: dict[int, float] | None = None
    """Values by metric; None: a card without GPM."""


class FakeNvml:
    """Patches `pynvml` in place. `unsupported` names functions that answer "not supported"."""

    def __init__(self, names: list[str], unsupported: set[str] = frozenset()) -> None:
        self.devices = [
            FakeDevice(name, f"GPU-{index}{index}{index}{index}-aaaa", used_gib=index + 1.0, util_pct=40.0 + index)
            for index, name in enumerate(names)
        ]
        self.unsupported = unsupported
        self.driver = "580.65.06"
        self.cuda = 13000
        self.open_samples = 0
        """GPM samples that were allocated and not freed."""

    @property
    def uuids(self) -> list[str]:
        return [device.uuid for device in self.devices]

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
        devices = self.devices
        answers = {
            "nvmlInit": lambda: None,
            "nvmlSystemGetDriverVersion": lambda: self.driver,
            "nvmlSystemGetCudaDriverVersion_v2": lambda: self.cuda,
            "nvmlDeviceGetClockInfo": lambda handle, kind: devices[handle].clock_mhz,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: devices[handle].clock_reasons,
            "nvmlDeviceGetCount": lambda: len(devices),
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetHandleByUUID": self._by_uuid,
            "nvmlDeviceGetMemoryInfo": self._memory,
            "nvmlDeviceGetUtilizationRates": self._utilization,
            "nvmlDeviceGetPowerUsage": lambda handle: devices[handle].power_w * 1000,
            "nvmlDeviceGetTemperature": lambda handle, sensor: devices[handle].temperature_c,
            "nvmlDeviceGetComputeMode": lambda handle: devices[handle].compute_mode,
            "nvmlDeviceGetCudaComputeCapability": lambda handle: devices[handle].capability,
            "nvmlDeviceGetMigMode": lambda handle: self._mig(devices[handle]),
            "nvmlDeviceGetComputeRunningProcesses_v2": self._refuse,
            "nvmlDeviceGetMPSComputeRunningProcesses_v2": self._refuse,
            "nvmlGpmQueryDeviceSupport": lambda handle: SimpleNamespace(
                isSupportedDevice=int(devices[handle].gpm is not None)
            ),
            "nvmlGpmSampleAlloc": self._allocate,
            "nvmlGpmSampleFree": self._free,
            "nvmlGpmSampleGet": self._sample,
            "nvmlGpmMetricsGet": self._metrics,
        }
        answers |= self._of_instances()
        for name, answer in answers.items():
            if name in OF_WHOLE_GPUS:
                answer = self._of_a_whole_gpu(answer)
            monkeypatch.setattr(pynvml, name, self._refuse if name in self.unsupported else answer)
        return self

    def _of_instances(self) -> dict[str, Any]:
        """What NVML answers about MIG instances. A handle is the instance itself; a GPU's is its index."""

        def by_index(handle: int, place: int) -> FakeInstance:
            found = self.devices[handle].instances[place]
            if found is None:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
            return found

        def whole(part: FakeInstance) -> int:
            return next(index for index, device in enumerate(self.devices) if part in device.instances)

        def either(of_gpu: Any, of_instance: Any) -> Any:
            return lambda handle: (of_instance if isinstance(handle, FakeInstance) else of_gpu)(handle)

        devices = self.devices
        return {
            "nvmlDeviceGetMaxMigDeviceCount": lambda handle: len(devices[handle].instances),
            "nvmlDeviceGetMigDeviceHandleByIndex": by_index,
            "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": whole,
            "nvmlDeviceGetGpuInstanceId": either(self._refuse, lambda part: part.gpu_instance),
            "nvmlDeviceGetComputeInstanceId": either(self._refuse, lambda part: part.compute_instance),
            "nvmlDeviceGetName": either(
                lambda handle: devices[handle].name,
                lambda part: f"{devices[whole(part)].name} MIG {part.profile}",
            ),
            "nvmlDeviceGetAttributes": either(
                self._refuse, lambda part: SimpleNamespace(memorySizeMB=int(part.total_gib * 1024))
            ),
            "nvmlDeviceGetUUID": either(lambda handle: devices[handle].uuid, lambda part: part.uuid),
            "nvmlDeviceGetComputeRunningProcesses_v3": either(
                lambda handle: _listed(devices[handle].processes), lambda part: _listed(part.processes)
            ),
            "nvmlDeviceGetMPSComputeRunningProcesses_v3": either(
                lambda handle: _listed(devices[handle].mps_processes), lambda part: []
            ),
            "nvmlGpmMigSampleGet": self._sample_of_instance,
        }

    def _of_a_whole_gpu(self, answer: Any) -> Any:
        def checked(handle: Any, *arguments: Any) -> Any:
            if isinstance(handle, FakeInstance):
                raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
            return answer(handle, *arguments)

        return checked

    def _sample_of_instance(self, handle: int, gpu_instance: int, sample: object) -> object:
        parts = [part for part in self.devices[handle].instances if part is not None]
        self._sampled = next(part for part in parts if part.gpu_instance == gpu_instance)
        return sample

    def _by_uuid(self, uuid: str) -> Any:
        parts = {part.uuid: part for device in self.devices for part in device.instances if part is not None}
        if uuid in parts:
            return parts[uuid]
        if uuid not in self.uuids:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return self.uuids.index(uuid)

    def _memory(self, handle: Any, version: int | None = None) -> Any:
        """`unsupported` with "memory_v2" is a driver of before version 2."""
        device = handle if isinstance(handle, FakeInstance) else self.devices[handle]
        total, used = device.total_gib * GIB, device.used_gib * GIB
        if isinstance(device, FakeInstance):
            return SimpleNamespace(total=total, used=used, free=total - used, reserved=0)
        if version is None:
            return SimpleNamespace(total=total, used=used, free=total - used)
        if "memory_v2" in self.unsupported:
            self._refuse()
        reserved = device.reserved_gib * GIB
        return SimpleNamespace(total=total, used=used, free=total - used - reserved, reserved=reserved)

    def _utilization(self, handle: int) -> Any:
        if self.devices[handle].mig == pynvml.NVML_DEVICE_MIG_ENABLE:
            self._refuse()
        return SimpleNamespace(gpu=self.devices[handle].util_pct, memory=5)

    def _mig(self, device: FakeDevice) -> list[int]:
        if device.mig is None:
            self._refuse()
        return [device.mig, device.mig]

    def _allocate(self) -> Any:
        self.open_samples += 1
        return pynvml.c_nvmlGpmSample_t(pynvml.struct_c_nvmlGpmSample_t())

    def _free(self, sample: object) -> None:
        self.open_samples -= 1

    def _sample(self, handle: int, sample: object) -> object:
        self._sampled = self.devices[handle]
        return sample

    def _metrics(self, request: Any) -> Any:
        for metric in request.metrics[: request.numMetrics]:
            values = self._sampled.gpm
            if metric.metricId in values:
                metric.nvmlReturn, metric.value = pynvml.NVML_SUCCESS, values[metric.metricId]
            else:
                metric.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED
        return request

    @staticmethod
    def _refuse(*_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def _listed(processes: dict[int, float | None]) -> list[Any]:
    return [
        SimpleNamespace(pid=pid, usedGpuMemory=int(gib * GIB) if gib is not None else None)
        for pid, gib in processes.items()
    ]
