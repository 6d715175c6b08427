"""MIG instances: the parts of a GPU that CUDA takes for devices of their own. A door to NVML, as nvml.py is.

What NVML does not tell of an instance is None: its use and its power, above all, are known of the whole GPU alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pynvml

from raygpu.devices import nvml
from raygpu.devices.nvml import GIB, Gpu, MigInstance, ask

MIG = "MIG-"
"""Prefix of an instance's UUID."""


def with_instances(gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs, each followed by its MIG instances."""
    return [each for gpu in gpus for each in (gpu, *(instances(gpu) if gpu.mig else ()))]


def instances(gpu: Gpu) -> list[Gpu]:
    """Return the MIG instances of a GPU as devices; empty where this process may not see any."""
    device = nvml.handle(gpu.uuid)
    if device is None:
        return []
    mig_devices = []
    for place in range(ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, device) or 0):
        part = ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, device, place)
        uuid = ask(pynvml.nvmlDeviceGetUUID, part) if part is not None else None
        if uuid is None:
            continue  # no instance has this number, or it is not this container's
        name = ask(pynvml.nvmlDeviceGetName, part)
        instance = MigInstance(
            place=place,
            gpu_uuid=gpu.uuid,
            gpu_instance=ask(pynvml.nvmlDeviceGetGpuInstanceId, part),
            compute_instance=ask(pynvml.nvmlDeviceGetComputeInstanceId, part),
        )
        mig_devices.append(
            replace(
                gpu,
                uuid=uuid,
                name=name or f"{gpu.name} MIG",
                memory_gib=_memory_gib(part, gpu),
                mig=None,
                instance=instance,
            )
        )
    return mig_devices


def _memory_gib(part: Any, gpu: Gpu) -> float:
    """Return an instance's memory: by its figures, else by its profile; that of its GPU if NVML tells neither."""
    if (memory := ask(pynvml.nvmlDeviceGetMemoryInfo, part)) is not None:
        return float(memory.total / GIB)
    profile = ask(pynvml.nvmlDeviceGetAttributes, part)
    return float(profile.memorySizeMB / 1024) if profile is not None else gpu.memory_gib


def gpm_source(uuid: str) -> tuple[Any, int | None]:
    """Return the handle of the GPU whose counters a device has, and the id of the GPU instance they are counted for.

    The id is None for a whole GPU; both are None for a device that is gone.
    """
    device = nvml.handle(uuid)
    if device is None or not uuid.startswith(MIG):
        return device, None
    gpu_handle = ask(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, device)
    gpu_instance = ask(pynvml.nvmlDeviceGetGpuInstanceId, device)
    return (gpu_handle, gpu_instance) if gpu_instance is not None else (None, None)
