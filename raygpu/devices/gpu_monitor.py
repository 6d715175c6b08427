"""Readings of GPUs from time to time: NVML's of the moment, and GPM's means since the last time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from threading import Lock

from raygpu.devices import nvml
from raygpu.devices.gpm import GpmSampler
from raygpu.devices.nvml import Reading


class GpuMonitor:
    """Reader of GPUs of this machine. Safe to call from any thread; GPM's samples are freed with the process."""

    def __init__(self) -> None:
        self._samplers: dict[str, GpmSampler] = {}
        self._lock = Lock()

    def read(self, uuids: Sequence[str]) -> dict[str, Reading]:
        """Return the readings of GPUs by UUID; one that cannot be read is left out.

        GPM's are means since the last call for this GPU; None in the first call, and where the GPU has none.
        """
        readings = nvml.read(uuids)
        with self._lock:
            return {uuid: replace(reading, **self._gpm(uuid)) for uuid, reading in readings.items()}

    def _gpm(self, uuid: str) -> dict[str, float | None]:
        sampler = self._samplers.get(uuid)
        if sampler is None:
            self._samplers[uuid] = GpmSampler(uuid).__enter__()
            return {}
        counters = sampler.reading()
        return asdict(counters) if counters is not None else {}
