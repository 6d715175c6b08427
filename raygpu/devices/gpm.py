"""GPU performance monitoring (GPM), from Hopper on: how busy a GPU's processors and memory really are.

The utilisation that `nvidia-smi` shows is the share of time in which any kernel ran. GPM counts the multiprocessors
that were busy, the warps on them, and the memory's traffic, each as a mean between two samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import pynvml

from raygpu.devices.mig import gpm_source
from raygpu.devices.nvml import ask


@dataclass(frozen=True, slots=True)
class Gpm:
    """GPM's counters, as means over an interval; None for a counter that the GPU lacks."""

    sm_util_pct: float | None
    """Share of the streaming multiprocessors that were busy, in %."""
    sm_occupancy_pct: float | None
    """Resident warps as a share of the possible ones, in %."""
    dram_bandwidth_pct: float | None
    """Memory traffic as a share of the peak bandwidth, in %."""


COUNTERS = {
    "sm_util_pct": pynvml.NVML_GPM_METRIC_SM_UTIL,
    "sm_occupancy_pct": pynvml.NVML_GPM_METRIC_SM_OCCUPANCY,
    "dram_bandwidth_pct": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
}


class GpmSampler:
    """Context manager that samples a device at its entry; `reading` samples again and returns the means in between.

    The device is a GPU, or a MIG instance: those of one GPU instance have its counters together.

    Not thread-safe. The samples are NVML's memory: they are freed at the exit.
    """

    def __init__(self, uuid: str) -> None:
        self._uuid = uuid
        self._device: Any = None
        self._gpu_instance: int | None = None
        self._first: Any = None
        self._second: Any = None

    def __enter__(self) -> GpmSampler:
        self._device, self._gpu_instance = gpm_source(self._uuid)
        support = ask(pynvml.nvmlGpmQueryDeviceSupport, self._device) if self._device is not None else None
        if support is not None and support.isSupportedDevice:
            first, self._second = ask(pynvml.nvmlGpmSampleAlloc), ask(pynvml.nvmlGpmSampleAlloc)
            # A driver may know GPM and keep its counters for administrators.
            if self._second is None or self._sample(first) is None:
                self._free(first)
            else:
                self._first = first
        return self

    def reading(self) -> Gpm | None:
        """Return the means since the entry or the last reading; None where no counter can be read."""
        if self._first is None or self._sample(self._second) is None:
            return None
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(COUNTERS)
        request.sample1, request.sample2 = self._first, self._second
        for place, metric in enumerate(COUNTERS.values()):
            request.metrics[place].metricId = metric
        answer = ask(pynvml.nvmlGpmMetricsGet, request)
        self._first, self._second = self._second, self._first
        if answer is None:
            return None
        values = {name: _value(answer.metrics[place]) for place, name in enumerate(COUNTERS)}
        return Gpm(**values) if any(value is not None for value in values.values()) else None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._free(self._first)
        self._first = None

    def _sample(self, into: Any) -> Any:
        """Read the counters into a sample; return None where they cannot be read."""
        if self._gpu_instance is None:
            return ask(pynvml.nvmlGpmSampleGet, self._device, into)
        return ask(pynvml.nvmlGpmMigSampleGet, self._device, self._gpu_instance, into)

    def _free(self, first: Any) -> None:
        for sample in (first, self._second):
            if sample is not None:
                ask(pynvml.nvmlGpmSampleFree, sample)
        self._second = None


def _value(metric: Any) -> float | None:
    valid = metric.nvmlReturn == pynvml.NVML_SUCCESS and math.isfinite(metric.value)
    return float(metric.value) if valid else None
