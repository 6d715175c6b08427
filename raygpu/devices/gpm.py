"""GPU performance monitoring (GPM), from Hopper on: what the processors of a GPU really do.

The utilisation that `nvidia-smi` shows is the share of time in which any kernel ran. GPM counts the multiprocessors
that were busy, the warps on them, and the memory's traffic, each as a mean between two samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import pynvml

from raygpu.devices.nvml import ask, handle


@dataclass(frozen=True, slots=True)
class Gpm:
    """Means over an interval; None for a counter that this card lacks."""

    sm_util_pct: float | None
    """Of the streaming multiprocessors, how many were busy."""
    sm_occupancy_pct: float | None
    """Of the warps that could have been resident, how many were."""
    dram_bandwidth_pct: float | None


COUNTERS = {
    "sm_util_pct": pynvml.NVML_GPM_METRIC_SM_UTIL,
    "sm_occupancy_pct": pynvml.NVML_GPM_METRIC_SM_OCCUPANCY,
    "dram_bandwidth_pct": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
}


class GpmSampler:
    """Samples a GPU at its entry; `reading` samples again and tells of the time between. Not for two threads at once.

    The samples are NVML's memory: they are freed at the exit.
    """

    def __init__(self, uuid: str) -> None:
        self._uuid = uuid
        self._device: Any = None
        self._first: Any = None
        self._second: Any = None

    @property
    def supported(self) -> bool:
        """Within the context: whether there will be a reading."""
        return self._first is not None

    def __enter__(self) -> GpmSampler:
        self._device = handle(self._uuid)
        support = ask(pynvml.nvmlGpmQueryDeviceSupport, self._device) if self._device is not None else None
        if support is not None and support.isSupportedDevice:
            first, self._second = ask(pynvml.nvmlGpmSampleAlloc), ask(pynvml.nvmlGpmSampleAlloc)
            # A driver may know GPM and keep its counters for administrators.
            if self._second is None or ask(pynvml.nvmlGpmSampleGet, self._device, first) is None:
                self._free(first)
            else:
                self._first = first
        return self

    def reading(self) -> Gpm | None:
        """The means since the entry, or since the last reading."""
        if self._first is None or ask(pynvml.nvmlGpmSampleGet, self._device, self._second) is None:
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

    def _free(self, first: Any) -> None:
        for sample in (first, self._second):
            if sample is not None:
                ask(pynvml.nvmlGpmSampleFree, sample)
        self._second = None


def _value(metric: Any) -> float | None:
    told = metric.nvmlReturn == pynvml.NVML_SUCCESS and math.isfinite(metric.value)
    return float(metric.value) if told else None
