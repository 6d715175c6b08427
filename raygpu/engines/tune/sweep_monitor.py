"""Update the live table every half second, and the GPUs' readings and throughput every two seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

import psutil

from raygpu.devices.nvml import Reading
from raygpu.engines.cluster.cluster import Cluster
from raygpu.records.snapshot import Snapshot
from raygpu.records.timeline import Timeline
from raygpu.records.trial_records import Records
from raygpu.records.trial_writer import TrialWriter

TABLE_S = 0.5
GPU_S = 2.0


class SweepMonitor:
    """Context manager with a thread that monitors a sweep beside Tune's event loop."""

    def __init__(
        self,
        records: Records,
        cluster: Cluster,
        writer: TrialWriter,
        timeline: Timeline,
        show: Callable[[Snapshot, Mapping[int, Mapping[str, float]], str | None], None],
        export: Callable[[Snapshot, Mapping[int, Reading]], None],
    ) -> None:
        """Prepare the thread; the context's entry starts it.

        show: called with the table's state, the GPUs' readings by device index and name, and the reason why MLflow
        waits, or None. export: called with the same state and the readings by device index.
        """
        self.records = records
        self.cluster = cluster
        self.writer, self.timeline = writer, timeline
        self.show, self.export = show, export
        self._latest: dict[int, dict[str, float]] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)

    def __enter__(self) -> SweepMonitor:
        psutil.cpu_percent()  # the next call tells the use since this one
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        next_gpu = time.monotonic()
        while not self._end.wait(TABLE_S):
            snapshot = self.records.snapshot()
            self.show(snapshot, self._latest, self.writer.delayed)
            if time.monotonic() >= next_gpu:
                next_gpu = time.monotonic() + GPU_S
                self._gpus(snapshot)

    def _gpus(self, snapshot: Snapshot) -> None:
        rates = {index: rate for index, rate in snapshot.samples_per_s.items() if rate is not None}
        by_gpu: dict[int, dict[str, float]] = {index: {"samples_per_s": rate} for index, rate in rates.items()}
        readings = self.cluster.readings()
        if self._end.is_set():
            return  # a node that is gone has made them late, and the writer takes no more
        self._latest = {index: reading.metrics() for index, reading in readings.items()}
        self.export(snapshot, readings)
        for index, values in self._latest.items():
            self.records.gpus.read(index, values)
            by_gpu.setdefault(index, {}).update(values)
        for index, noted in by_gpu.items():
            self.timeline.gpu(index, noted)
        if self.cluster.local:
            self.timeline.host(psutil.cpu_percent())
        self.timeline.flush()
        used = self.records.gpus.used
        metrics = {f"gpu/{gpu}/{name}": value for gpu in used & by_gpu.keys() for name, value in by_gpu[gpu].items()}
        if metrics:
            self.writer.run_metrics(round(snapshot.elapsed_s), metrics)
