"""The monitor beside Tune's event loop."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from raygpu.devices.nvml import Reading
from raygpu.engines.tune.sweep_monitor import SweepMonitor
from raygpu.records.device import Device
from raygpu.records.timeline import Timeline
from raygpu.records.trial_records import Records
from raygpu.search.scoring import Scoring


def test_readings_that_come_after_the_sweep_s_end_are_dropped() -> None:
    asked, ended, told = threading.Event(), threading.Event(), list[Any]()

    def readings() -> dict[int, Reading]:
        asked.set()
        assert ended.wait(60)
        return {0: Reading(1.0, 2.0, 3.0, 4.0)}

    records = Records(1, Scoring("accuracy", True), [Device(0, "n", "0", "A100", "GPU-a")], 1)
    records.gpus.used.add(0)
    cluster: Any = SimpleNamespace(readings=readings, local=False)
    writer: Any = SimpleNamespace(delayed=None, run_metrics=lambda *metrics: told.append(metrics))
    monitor = SweepMonitor(records, cluster, writer, Timeline(None), lambda *_: None, lambda *_: None)
    with monitor:
        assert asked.wait(60)
        threading.Timer(0.2, ended.set).start()
    monitor._thread.join(60)
    assert not monitor._thread.is_alive()
    assert told == []
