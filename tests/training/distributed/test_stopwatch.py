"""The seconds of a device's own work, in steps of a whole batch alone."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from raygpu.training.distributed.stopwatch import Stopwatch


def test_a_lap_is_a_step_without_the_wait_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 2.0, 5.0, 6.0, 9.0, 10.0, 14.0, 14.5, 15.0])
    monkeypatch.setattr(
        "raygpu.training.distributed.stopwatch.time", SimpleNamespace(perf_counter=lambda: next(moments))
    )
    watch = Stopwatch(torch.device("cpu"))
    watch.restart()
    watch.pause()  # two seconds of work
    watch.lap(whole=True)  # three of waiting
    watch.pause()
    watch.lap(whole=False)  # a short batch tells nothing of a whole one
    watch.pause()
    watch.go_on()  # after four seconds, within a step
    watch.pause()
    watch.lap(whole=True)
    assert watch.seconds() == [2.0, 1.5]
    assert watch.seconds() == []
