"""The only door to NVML, together with gpm.py and mig.py: the GPUs of this machine and their readings.

A missing GPU, driver or permission raises nothing: a value that cannot be read is None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import psutil
import pynvml

GIB = 2**30

ComputeMode = Literal["default", "exclusive-process", "prohibited"]
COMPUTE_MODES: dict[int, ComputeMode] = {
    pynvml.NVML_COMPUTEMODE_DEFAULT: "default",
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "exclusive-process",
    pynvml.NVML_COMPUTEMODE_PROHIBITED: "prohibited",
}
CLOCK_REASONS: dict[int, str] = {
    pynvml.nvmlClocksEventReasonSwPowerCap: "power limit",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "temperature",
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "temperature (hardware)",
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "power brake",
    pynvml.nvmlClocksThrottleReasonHwSlowdown: "hardware slowdown",
    pynvml.nvmlClocksEventReasonApplicationsClocksSetting: "a setting of its clocks",
    pynvml.nvmlClocksEventReasonSyncBoost: "the slowest GPU of its group",
}


@dataclass(frozen=True, slots=True)
class MigInstance:
    """The place of a MIG instance in its GPU."""

    place: int
    """NVML's index of the instance among those of its GPU."""
    gpu_uuid: str
    gpu_instance: int | None
    compute_instance: int | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of this machine, or a MIG instance of one."""

    index: int
    """NVML's index, in the order of the PCI bus; of an instance, that of its GPU."""
    uuid: str
    name: str
    memory_gib: float
    """Its memory; of a GPU that shares the host's memory, all of that."""
    capability: tuple[int, int] | None = None
    """CUDA compute capability: (8, 0) for an A100."""
    compute_mode: ComputeMode | None = None
    mig: bool | None = None
    """Whether the GPU is cut into MIG instances; None where the GPU has no MIG, as all GPUs older than the A100."""
    instance: MigInstance | None = None
    """None for a whole GPU."""

    @property
    def label(self) -> str:
        """Index for a person: 0, or 0:1 for the second MIG instance of it."""
        return str(self.index) if self.instance is None else f"{self.index}:{self.instance.place}"


@dataclass(frozen=True, slots=True)
class Memory:
    """A GPU's memory at one moment: reserved, used and free parts make the total."""

    total_gib: float
    free_gib: float
    reserved_gib: float | None
    """Memory of the driver and firmware, out of reach for every process; None where an older driver counts it as used.
    """

    @property
    def used_gib(self) -> float:
        """Return the memory in use in GiB; includes the reserved memory where an older driver counts it as used."""
        # NVML's own `used` of version 2 has counted the reserved part in one driver and left it out in the next.
        return self.total_gib - self.free_gib - (self.reserved_gib or 0.0)


@dataclass(frozen=True, slots=True)
class Reading:
    """NVML's readings of a GPU at one moment; None for a reading that the device does not support."""

    memory_gib: float | None
    util_pct: float | None
    power_w: float | None
    temperature_c: float | None
    sm_util_pct: float | None = None
    """Mean of GPM's counter since the last reading (`gpu_monitor`); so are the other two."""
    sm_occupancy_pct: float | None = None
    dram_bandwidth_pct: float | None = None

    def metrics(self) -> dict[str, float]:
        """Return the supported readings by the names of the fields."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Clock:
    """A GPU's clock of its multiprocessors at one moment, in MHz; None for what the device does not tell."""

    mhz: int | None
    lowered_by: tuple[str, ...] = ()
    """Reasons why it is below the highest one; an idle GPU lowers it by itself, which is none."""


def gpus() -> list[Gpu]:
    """Return the GPUs of this machine; empty without an NVIDIA driver."""
    if not _started():
        return []
    detected_gpus = []
    for index in range(ask(pynvml.nvmlDeviceGetCount) or 0):
        device = ask(pynvml.nvmlDeviceGetHandleByIndex, index)
        if device is None:
            continue  # fallen off the bus, or not this container's
        room = _memory(device)
        mig = ask(pynvml.nvmlDeviceGetMigMode, device)
        detected_gpus.append(
            Gpu(
                index=index,
                uuid=pynvml.nvmlDeviceGetUUID(device),
                name=pynvml.nvmlDeviceGetName(device),
                memory_gib=room.total_gib if room is not None else unified_gib(),
                capability=ask(pynvml.nvmlDeviceGetCudaComputeCapability, device),
                compute_mode=COMPUTE_MODES.get(ask(pynvml.nvmlDeviceGetComputeMode, device)),
                mig=mig[0] == pynvml.NVML_DEVICE_MIG_ENABLE if mig is not None else None,
            )
        )
    return detected_gpus


def unified_gib() -> float:
    """Return the memory of a GPU that shares the host's and for which NVML has no figure, as torch does: all of it."""
    return float(psutil.virtual_memory().total / GIB)


def driver_version() -> str | None:
    """Return the driver's version, as "580.65.06"; None without an NVIDIA driver."""
    return ask(pynvml.nvmlSystemGetDriverVersion) if _started() else None


def driver_cuda_version() -> str | None:
    """Return the newest CUDA that the driver runs, as "13.0"; None without an NVIDIA driver."""
    version = ask(pynvml.nvmlSystemGetCudaDriverVersion_v2) if _started() else None
    return f"{version // 1000}.{version % 1000 // 10}" if version is not None else None


def read(uuids: Sequence[str]) -> dict[str, Reading]:
    """Return the current readings of GPUs of this machine, by UUID; a GPU that is gone is left out."""
    readings = {}
    for uuid in uuids:
        device = handle(uuid)
        if device is None:
            continue
        room = _memory(device)
        utilization = ask(pynvml.nvmlDeviceGetUtilizationRates, device)
        power_mw = ask(pynvml.nvmlDeviceGetPowerUsage, device)
        temperature = ask(pynvml.nvmlDeviceGetTemperature, device, pynvml.NVML_TEMPERATURE_GPU)
        readings[uuid] = Reading(
            memory_gib=room.used_gib if room is not None else None,
            util_pct=float(utilization.gpu) if utilization is not None else None,
            power_w=power_mw / 1000 if power_mw is not None else None,
            temperature_c=float(temperature) if temperature is not None else None,
        )
    return readings


def memory(uuid: str) -> Memory | None:
    """Return a GPU's current memory; None where the GPU is gone or does not report it."""
    device = handle(uuid)
    return _memory(device) if device is not None else None


def clock(uuid: str) -> Clock:
    """Return a GPU's current clock, and why it is lowered."""
    device = handle(uuid)
    if device is None:
        return Clock(None)
    reasons = ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons, device) or 0
    return Clock(
        mhz=ask(pynvml.nvmlDeviceGetClockInfo, device, pynvml.NVML_CLOCK_SM),
        lowered_by=tuple(name for bit, name in CLOCK_REASONS.items() if reasons & bit),
    )


def process_memory(uuid: str) -> dict[int, float | None] | None:
    """Return the GPU memory of each computing process in GiB, by pid, MPS clients included.

    None where NVML lists no processes; a process without a figure has None (WSL2). In a container the pids are those of
    the host, or there are none at all: an empty answer does not prove that the GPU is free.
    """
    device = handle(uuid)
    if device is None:
        return None
    lists = [
        _either(device, pynvml.nvmlDeviceGetComputeRunningProcesses_v3, pynvml.nvmlDeviceGetComputeRunningProcesses_v2),
        _either(
            device, pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3, pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v2
        ),
    ]
    if all(each is None for each in lists):
        return None
    gib_by_pid: dict[int, float | None] = {}
    for process in (process for each in lists for process in each or ()):
        gib = process.usedGpuMemory / GIB if process.usedGpuMemory is not None else None
        earlier_gib = gib_by_pid.get(process.pid)
        gib_by_pid[process.pid] = gib if earlier_gib is None else max(earlier_gib, gib or 0.0)
    return gib_by_pid


def handle(uuid: str) -> Any:
    """Return NVML's handle of a GPU, or None where there is no such GPU or no driver."""
    return ask(pynvml.nvmlDeviceGetHandleByUUID, uuid) if _started() else None


def ask(query: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of pynvml; return None where this device, driver or container has no answer."""
    try:
        return query(*arguments)
    except pynvml.NVMLError:
        return None


def _started() -> bool:
    """Start NVML and return whether it runs. NVML counts its starts, so a second start costs nothing."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    return True


def _memory(device: Any) -> Memory | None:
    memory_info = ask(pynvml.nvmlDeviceGetMemoryInfo, device, pynvml.nvmlMemory_v2)
    if memory_info is not None:
        return Memory(memory_info.total / GIB, memory_info.free / GIB, memory_info.reserved / GIB)
    memory_info = ask(pynvml.nvmlDeviceGetMemoryInfo, device)
    return Memory(memory_info.total / GIB, memory_info.free / GIB, None) if memory_info is not None else None


def _either(device: Any, newer: Callable[..., Any], older: Callable[..., Any]) -> Any:
    answer = ask(newer, device)
    return answer if answer is not None else ask(older, device)
