from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from raygpu.engines.tune.array_config import ArrayConfig
from raygpu.engines.tune.callback import ArrayCallback
from raygpu.planning.gpu_shares import Share
from raygpu.records.trial_records import Device, Records
from raygpu.search.trials import EpochResult, Scoring, Trial


def test_hours_of_a_lost_array_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("raygpu.records.trial_records.time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    records = Records(2, Scoring("accuracy", True), [Device(0, "node", "0", "T4", rgu=2.0)], epochs=4)
    live: Any = SimpleNamespace(records=records)
    config = ArrayConfig("a0000", ("t0000", "t0001"), fused=True, device="T4", share=Share(2))
    array: Any = SimpleNamespace(trial_id="a", config=config.as_dict())
    records.hold("a")
    for index in range(2):
        records.start(Trial(Trial.name(index), index, {}))
        records.add(Trial.name(index), [EpochResult(1, {"accuracy": 0.5})], 0)
    now[0] = 3600.0  # nothing is told any more: the worker is lost
    ArrayCallback(live).on_trial_recover(0, [], array)
    assert records.retries == 1
    assert records.rgu_hours() == pytest.approx(1.0), "half a GPU of 2 RGU, for an hour"
