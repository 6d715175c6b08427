"""Export a run's metrics to Prometheus through Ray; `deploy/grafana/raygpu.json` shows them beside Ray's own.

The driver's node exports them, as `ray_raygpu_...`. All are gauges, since Ray's counters cannot begin at 0. Ray forgets
a gauge that is not set again within two of its report intervals, of 10 s unless RAY_metrics_report_interval_ms says
otherwise. So a run's gauges are set every two seconds, and expire once it has ended or its driver is gone: none is set
to 0 at the end.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from ray.util.metrics import Gauge

from raygpu.devices.nvml import GIB, Reading
from raygpu.records.device import Device
from raygpu.records.snapshot import Snapshot
from raygpu.records.training_progress import History, Progress
from raygpu.records.trial_records import Records
from raygpu.search.trial_record import Status

EXPORT_S = 2.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Metric:
    """Definition of a gauge: name, description and tag names."""

    name: str
    description: str
    tags: tuple[str, ...]

    @property
    def exported(self) -> str:
        """Return the metric's name in Prometheus."""
        return f"ray_{self.name}"


SAMPLES = Metric(
    "raygpu_samples_per_second",
    "Training samples per second of a sweep's GPU: the sum over the trials that run on it.",
    ("run", "gpu", "device"),
)
TRIALS = Metric(
    "raygpu_trials",
    "Trials of a sweep in this state; those that diverged are not among the finished ones.",
    ("run", "status"),
)
TRIALS_PER_GPU = Metric(
    "raygpu_trials_per_gpu",
    "Trials that train on a GPU now, each counted from its first result on.",
    ("run", "gpu"),
)
MEMORY = Metric(
    "raygpu_gpu_memory_used_bytes",
    "Memory in use on a GPU of the run, of all processes together, as NVML tells.",
    ("run", "gpu", "device"),
)
RETRIES = Metric(
    "raygpu_retries",
    "How often trainings of the run, so far, went on after an out-of-memory or a lost worker.",
    ("run", "reason"),
)
TRAINING_SAMPLES = Metric(
    "raygpu_training_samples_per_second",
    "Samples per second of a production training's rank, between its last two exchanges.",
    ("run", "rank"),
)
METRICS = (SAMPLES, TRIALS, TRIALS_PER_GPU, MEMORY, RETRIES, TRAINING_SAMPLES)


@dataclass(frozen=True, slots=True)
class MetricSample:
    """Current value of a metric for one set of tags."""

    metric: Metric
    tags: Mapping[str, str]
    value: float


def of_sweep(run: str, records: Records, snapshot: Snapshot, readings: Mapping[int, Reading]) -> Iterator[MetricSample]:
    """Yield the metrics of a sweep; a GPU without a known throughput gets no throughput point.

    run: name of the run. readings: NVML's, by device index.
    """
    trial_records = list(records.by_id.values())  # each is counted once, whatever changes meanwhile
    statuses: Counter[str] = Counter(record.outcome for record in trial_records)
    statuses["waiting"] += records.num_trials - len(trial_records)
    for status in (*get_args(Status), "diverged"):
        yield MetricSample(TRIALS, {"run": run, "status": status}, statuses[status])
    running = Counter(record.gpu_index for record in trial_records if record.status == "running")
    for device in records.gpus.devices:
        yield MetricSample(TRIALS_PER_GPU, {"run": run, "gpu": str(device.index)}, running[device.index])
        rate = snapshot.samples_per_s.get(device.index)
        if rate is not None:
            yield MetricSample(SAMPLES, _of_device(run, device), rate)
    yield MetricSample(RETRIES, {"run": run, "reason": "out_of_memory"}, records.out_of_memory)
    yield MetricSample(RETRIES, {"run": run, "reason": "lost_worker"}, records.retries)
    yield from _memory(run, records.gpus.devices, readings)


def of_training(
    run: str, history: History, told: Progress | None, readings: Mapping[int, Reading]
) -> Iterator[MetricSample]:
    """Yield the metrics of a production training.

    run: name of the run. told: progress since the last export; None for no new one. readings: NVML's, by device index.
    """
    if told is not None:
        for rank, samples in enumerate(told.samples):
            yield MetricSample(TRAINING_SAMPLES, {"run": run, "rank": str(rank)}, samples / told.wall_s)
    yield MetricSample(RETRIES, {"run": run, "reason": "lost_worker"}, max(0, history.starts - 1))
    yield from _memory(run, history.devices, readings)


def _memory(run: str, devices: Sequence[Device], readings: Mapping[int, Reading]) -> Iterator[MetricSample]:
    for device in devices:
        reading = readings.get(device.index)
        if reading is not None and reading.memory_gib is not None:
            yield MetricSample(MEMORY, _of_device(run, device), reading.memory_gib * GIB)


def _of_device(run: str, device: Device) -> dict[str, str]:
    return {"run": run, "gpu": str(device.index), "device": device.name}


class _Exporter:
    """Exporter that sets Ray's gauges. An error ends the export, never the run."""

    def __init__(self) -> None:
        self._gauges: dict[str, Any] = {}
        self._broken = False

    def _export(self, points: Callable[[], Iterable[MetricSample]]) -> None:
        if self._broken:
            return
        try:
            for point in points():
                if math.isfinite(point.value):  # a function may report what it likes
                    self._gauge(point.metric).set(float(point.value), dict(point.tags))
        except Exception:
            self._broken = True
            logger.exception("no metrics go to Ray from here on; the run goes on")

    def _gauge(self, metric: Metric) -> Any:
        if metric.name not in self._gauges:
            self._gauges[metric.name] = Gauge(metric.name, metric.description, metric.tags)
        return self._gauges[metric.name]


class SweepExporter(_Exporter):
    """Exporter of a sweep's metrics."""

    def __init__(self, run: str, records: Records) -> None:
        super().__init__()
        self.run, self.records = run, records

    def update(self, snapshot: Snapshot, readings: Mapping[int, Reading]) -> None:
        """Export the current metrics; call it every two seconds. readings: NVML's, by device index."""
        self._export(lambda: of_sweep(self.run, self.records, snapshot, readings))

    def finish(self, snapshot: Snapshot) -> None:
        """Export the metrics a last time at the sweep's end, without readings; then the gauges expire."""
        self._export(lambda: of_sweep(self.run, self.records, snapshot, {}))


class TrainingExporter(_Exporter):
    """Exporter of a production training's metrics; without new progress no throughput is exported."""

    def __init__(self, run: str, history: History, readings: Callable[[], Mapping[int, Reading]]) -> None:
        """Export the run `run`. readings: called for NVML's readings, by device index."""
        super().__init__()
        self.run, self.history, self.readings = run, history, readings
        self._told: Progress | None = None
        self._next = 0.0

    def update(self) -> None:
        """Export the metrics if two seconds have gone by since the last time."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EXPORT_S
        last = self.history.last
        told, self._told = (None if last is self._told else last), last
        self._export(lambda: of_training(self.run, self.history, told, self.readings()))
