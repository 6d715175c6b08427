"""Rounds of a climb on a machine that disturbs them, without Ray: more of them, again, and points in doubt."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from raygpu.config.sections import Way
from raygpu.engines.profiling import windows as module
from raygpu.engines.profiling.concurrency_benchmark import ConcurrencyBenchmark
from raygpu.engines.profiling.measured_points import Measured
from raygpu.engines.profiling.windows import APART, TRIES, Windows
from raygpu.engines.profiling.workload import Repetitions
from raygpu.training.timing import WorkWindow

ALONE = 40_000.0
Disturb = Callable[[str, int, int], float]
"""The part of its speed that a way at a number has in its n-th window."""


class Scripted(ConcurrencyBenchmark):
    """A climb whose windows are computed."""

    def __init__(self, disturb: Disturb, rounds: int = 3) -> None:
        device = SimpleNamespace(uuid=None, memory_gib=None)
        probe: Any = SimpleNamespace(local=False, num_cpus=2, device=device, source=SimpleNamespace(kind="torch"))
        super().__init__(probe, ["fused"], Repetitions(1.0, rounds), most=21, say=self.lines_append)
        self.disturb = disturb
        self.counts: dict[tuple[str, int], int] = {}

    def lines_append(self, line: str) -> None:
        self.__dict__.setdefault("lines", []).append(line)

    def begin(self) -> bool:
        self._alone = self._ready("process", 1)
        return True

    def _ready(self, way: Way, n: int) -> Measured:
        return Measured(way, n, 1, [], start_s=1.0)

    def _window(self, measured: Measured) -> float:
        key = measured.way, measured.n
        self.counts[key] = self.counts.get(key, 0) + 1
        rate = ALONE if measured.way == "process" else measured.n / (1e-5 + 4e-6 * measured.n)
        return rate * self.disturb(*key, self.counts[key])

    def _weigh(self, measured: Measured) -> None:
        pass


def test_steady_rounds_are_as_many_as_asked_for() -> None:
    climb = Scripted(lambda way, n, count: 1 + 0.01 * (count % 3))
    climb.run()
    assert all(p.doubt is None for p in climb.points)
    assert {len(p.rounds) for p in climb.points} == {3}
    assert [p.n for p in climb.points if p.way == "fused"] == [1, 2, 3, 5, 8, 13, 21]
    best = max(climb.points, key=lambda p: p.gain or 0.0)
    assert best.gain == pytest.approx(21 / (1e-5 + 4e-6 * 21) / ALONE, rel=0.03)
    assert best.gain_low is not None
    assert best.gain_high is not None
    assert best.gain_low < best.gain < best.gain_high < 1.2 * best.gain


def test_rounds_that_differ_are_followed_by_more() -> None:
    climb = Scripted(lambda way, n, count: 0.3 if (way, n, count) == ("fused", 8, 2) else 1 + 0.001 * (count % 5))
    climb.run()
    (point,) = (p for p in climb.points if (p.way, p.n) == ("fused", 8))
    assert len(point.rounds) > 3
    assert point.spread.width < 1.5
    assert point.gain == pytest.approx(8 / (1e-5 + 4e-6 * 8) / ALONE, rel=0.05)


def test_a_gain_over_a_disturbed_training_alone_is_measured_again() -> None:
    """Another process slows the training alone to a fifth, whose threads wait for each other, and not the array."""
    state = {"rounds": 0}

    def disturb(way: str, n: int, count: int) -> float:
        if (way, n) == ("fused", 13):
            state["rounds"] = count
        in_rounds_of_13 = climb.counts.get(("fused", 8), 0) >= 3 and state["rounds"] < 3
        return 0.2 if way == "process" and in_rounds_of_13 else 1.0 + 0.001 * count

    climb = Scripted(disturb)
    climb.run()
    lines = climb.__dict__["lines"]
    assert any(line.startswith("fused, 13 at once is measured again: a gain of") for line in lines)
    (point,) = (p for p in climb.points if (p.way, p.n) == ("fused", 13))
    assert point.doubt is None
    assert point.gain == pytest.approx(13 / (1e-5 + 4e-6 * 13) / ALONE, rel=0.05)


def test_what_stays_impossible_is_in_doubt() -> None:
    climb = Scripted(lambda way, n, count: (5.0 if (way, n) == ("fused", 13) else 1.0) + 0.001 * count)
    climb.run()
    doubts = [(p.way, p.n) for p in climb.points if p.doubt is not None]
    assert doubts == [("fused", 13)]
    assert climb.counts["fused", 13] == 9, "three rounds, and twice more"
    again = Scripted(lambda way, n, count: 5.0 if (way, n) == ("fused", 13) else 1.0, rounds=1)
    again.run()
    assert [(p.way, p.n) for p in again.points if p.doubt is not None] == [("fused", 13)], "with one round too"


class Actor:
    def __init__(self) -> None:
        self.starts: list[float] = []
        self.threads = SimpleNamespace(remote=lambda count: None)
        self.window = SimpleNamespace(remote=lambda start_at, seconds, notice_s: self.starts.append(start_at))


def test_windows_that_do_not_coincide_are_not_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """13 processes, of which one heard late: it had the device to itself, and the sum of rates was one that no moment
    has seen."""
    together = [WorkWindow(100, 1.0, 10.15, 10.0, 11.3), WorkWindow(100, 1.0, 10.2, 10.05, 11.35)]
    apart = [WorkWindow(100, 1.0, 10.15, 10.0, 11.3), WorkWindow(900, 1.0, 11.5, 11.35, 12.65)]
    actors = [Actor(), Actor()]
    now = [0.0]
    clock = SimpleNamespace(time=lambda: now[0], sleep=lambda seconds: None)
    monkeypatch.setattr(module, "time", clock)
    probe: Any = SimpleNamespace(local=False, num_cpus=2, device=SimpleNamespace(uuid=None))

    def rate(answered: list[Any]) -> tuple[float, int]:
        answers = iter(answered)
        monkeypatch.setattr(module, "answers", lambda calls: next(answers))
        return Windows(probe, 1.0).rate(Measured("process", 2, 1, actors)), len(list(answers))

    first, second = [[together[0]], [together[1]]], [[apart[0]], [apart[1]]]
    assert rate([[], first]) == (200.0, 0)
    assert rate([[], second, first]) == (200.0, 0), "tried again"
    assert actors[0].starts[-1] > 2.9 * actors[0].starts[-2], "with more notice"
    assert rate([[], *([second] * TRIES)]) == (0.0, 0)


def test_trainings_that_never_work_together_are_a_fault() -> None:
    climb = Scripted(lambda way, n, count: 0.0 if (way, n) == ("fused", 2) else 1.0)
    climb.run()
    (point,) = (p for p in climb.points if (p.way, p.n) == ("fused", 2))
    assert point.fault == APART
