"""The actor of a probe: the window of trainings on a node."""

from __future__ import annotations

import time
from typing import Any

from raygpu.engines.profiling.probe_actor import ProbeActor


class Bench:
    """Notes when its windows begin."""

    def __init__(self) -> None:
        self.begins: list[float] = []

    def window(self, start_at: float, seconds: float) -> list[Any]:
        self.begins.append(start_at)
        return []


def test_a_node_whose_clock_is_behind_waits_no_longer_than_the_notice() -> None:
    actor, bench = ProbeActor.__new__(ProbeActor), Bench()
    actor._bench = bench  # type: ignore[assignment]
    now = time.time()
    actor.window(now + 1.0, 0.1, 5.0)
    actor.window(now + 3600.0, 0.1, 5.0)
    first, second = bench.begins
    assert first == now + 1.0
    assert second <= time.time() + 5.0
