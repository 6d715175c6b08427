"""Readings of a GPU over a stretch of time: NVML sampled in a thread, GPM's counters over the whole of it.

with Telemetry(gpu.uuid) as telemetry:
    train()
telemetry.reading().sm_util_pct
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from raygpu.devices import nvml
from raygpu.devices.gpm import Gpm, GpmSampler
from raygpu.devices.nvml import Reading

INTERVAL_S = 0.1
JOIN_S = 5.0


@dataclass(frozen=True, slots=True)
class GpuWindow:
    """Means and peaks of one GPU over a stretch of time; None for a reading that the GPU does not support."""

    seconds: float
    num_samples: int
    util_pct: float | None
    """Mean share of time in which any kernel ran, as `nvidia-smi` shows it: no measure of how full the GPU is."""
    power_w: float | None
    """Mean power."""
    temperature_peak_c: float | None
    memory_gib: float | None
    """Mean memory in use by all processes on the GPU."""
    memory_peak_gib: float | None
    """Largest sample of the memory in use; a peak between two samples is not seen."""
    sm_util_pct: float | None
    sm_occupancy_pct: float | None
    dram_bandwidth_pct: float | None


class Telemetry:
    """Context manager that samples one GPU from its entry to its exit.

    A GPU that NVML cannot read yields a window of None.
    """

    def __init__(self, uuid: str, interval_s: float = INTERVAL_S) -> None:
        self._uuid = uuid
        self._interval_s = interval_s
        self._sampler = GpmSampler(uuid)
        self._gpm: Gpm | None = None
        self._samples: list[Reading] = []
        self._began_s = 0.0
        self._ended_s: float | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="telemetry", daemon=True)

    def __enter__(self) -> Telemetry:
        self._began_s = time.monotonic()
        self._sampler.__enter__()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._gpm = self._sampler.reading()
            self._ended_s = time.monotonic()
        finally:
            self._stop.set()
            self._thread.join(JOIN_S)  # a driver that hangs must not hang the training
            self._sampler.__exit__(kind, error, at)

    def reading(self) -> GpuWindow:
        """Return the window so far, or the whole window after the exit. GPM's counters exist only after the exit."""
        samples = list(self._samples)
        memory = [sample.memory_gib for sample in samples]
        gpm = self._gpm or Gpm(None, None, None)
        return GpuWindow(
            seconds=(time.monotonic() if self._ended_s is None else self._ended_s) - self._began_s,
            num_samples=len(samples),
            util_pct=_mean([sample.util_pct for sample in samples]),
            power_w=_mean([sample.power_w for sample in samples]),
            temperature_peak_c=_peak([sample.temperature_c for sample in samples]),
            memory_gib=_mean(memory),
            memory_peak_gib=_peak(memory),
            sm_util_pct=gpm.sm_util_pct,
            sm_occupancy_pct=gpm.sm_occupancy_pct,
            dram_bandwidth_pct=gpm.dram_bandwidth_pct,
        )

    def _watch(self) -> None:
        while True:
            sample = nvml.read([self._uuid]).get(self._uuid)
            if sample is not None:
                self._samples.append(sample)
            if self._stop.wait(self._interval_s):
                return


def _told(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Sequence[float | None]) -> float | None:
    known_values = _told(values)
    return sum(known_values) / len(known_values) if known_values else None


def _peak(values: Sequence[float | None]) -> float | None:
    return max(_told(values), default=None)
