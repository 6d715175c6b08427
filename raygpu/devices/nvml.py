"""The only door to NVML: which GPUs there are, and what they read. Nothing here raises for want of a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pynvml

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of this machine."""

    index: int
    """NVML's, in the order of the PCI bus."""
    uuid: str
    name: str
    memory_gib: float


@dataclass(frozen=True, slots=True)
class Reading:
    """What a GPU reads now; None where the device does not tell."""

    memory_gib: float | None
    util_pct: float | None
    power_w: float | None
    temperature_c: float | None

    def metrics(self) -> dict[str, float]:
        """By name, what exists: memory_gib, util_pct, power_w, temperature_c."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in values.items() if value is not None}


def gpus() -> list[Gpu]:
    """The GPUs of this machine; none where there is no NVIDIA driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    found = []
    for index in range(_ask(pynvml.nvmlDeviceGetCount) or 0):
        handle = _ask(pynvml.nvmlDeviceGetHandleByIndex, index)
        if handle is None:
            continue  # fallen off the bus, or not this container's
        memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
        found.append(
            Gpu(
                index=index,
                uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
                name=_text(pynvml.nvmlDeviceGetName(handle)),
                memory_gib=memory.total / GIB if memory is not None else 0.0,
            )
        )
    return found


def read(uuids: Sequence[str]) -> dict[str, Reading]:
    """What these GPUs of this machine read now, by UUID; a GPU that is gone is left out."""
    readings = {}
    for uuid in uuids:
        handle = _ask(pynvml.nvmlDeviceGetHandleByUUID, uuid)
        if handle is None:
            continue
        memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
        utilization = _ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
        power_mw = _ask(pynvml.nvmlDeviceGetPowerUsage, handle)
        temperature = _ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU)
        readings[uuid] = Reading(
            memory_gib=memory.used / GIB if memory is not None else None,
            util_pct=float(utilization.gpu) if utilization is not None else None,
            power_w=power_mw / 1000 if power_mw is not None else None,
            temperature_c=float(temperature) if temperature is not None else None,
        )
    return readings


def _ask(query: Callable[..., Any], *arguments: Any) -> Any:
    """An answer of NVML, or None where this device, driver or container has none."""
    try:
        return query(*arguments)
    except pynvml.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
