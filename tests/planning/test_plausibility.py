"""Points that contradict themselves or each other: found, measured again, and not used."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from raygpu.config.sections import Way
from raygpu.planning.confidence import ratio
from raygpu.planning.plausibility import contradictions, mark_doubtful, normalise
from raygpu.planning.profiles import Point

ALONE = 40_000.0


def point(way: Way, n: int, rates: list[float], references: list[float] | None = None) -> Point:
    references = references or [ALONE] * len(rates)
    gain = ratio(rates, references)
    made = Point(
        way,
        n,
        gain=gain.middle,
        gain_low=gain.low,
        gain_high=gain.high,
        rounds=tuple(rates),
        references=tuple(references),
    )
    return normalise(made, ALONE)


def fused(n: int, rate: float, spread: float = 0.03) -> Point:
    return point("fused", n, [rate * (1 - spread), rate, rate * (1 + spread)])


FIRST = point("process", 1, [ALONE] * 3)
REAL = [FIRST, fused(1, 20e3), fused(2, 35e3), fused(5, 75e3), fused(8, 97e3), fused(21, 171e3)]
"""Of the report: 97,000 samples/s at 8 at once, 171,000 at 21."""


def test_sound_points_are_left_alone() -> None:
    assert contradictions(REAL, ALONE) == {}
    assert mark_doubtful(REAL, ALONE) == REAL


def test_a_gain_over_a_training_alone_that_was_disturbed() -> None:
    """678,000 samples/s were in no window: they were the gain over one training alone that another process had slowed
    to a quarter, times its speed without that process."""
    rates = [124e3, 150e3, 177e3]
    wrong = point("fused", 13, rates, [rate / 16.9 for rate in rates])
    assert wrong.gain is not None
    assert ALONE * wrong.gain > 670e3
    assert wrong.samples_per_s == 177e3, "no more than a window measured"
    reason = contradictions([*REAL, wrong], ALONE)[len(REAL)]
    assert "would be 676,000/s, and its own windows measured 124,000 to 177,000" in reason
    assert "one training alone ran at 0.22 of its usual speed" in reason
    *others, last = mark_doubtful([*REAL, wrong], ALONE)
    assert others == REAL
    assert last.doubt == reason


def test_more_trainings_do_not_take_less_time_than_fewer() -> None:
    wrong = fused(13, 678e3)
    points = [*REAL, wrong]
    found = contradictions(points, ALONE)
    assert found[len(REAL)] == "13 at once seem to take less time than 8 (2.42x and 16.9x the throughput of one)"
    assert [p.doubt is not None for p in mark_doubtful(points, ALONE)] == [False] * len(REAL) + [True]
    slow = fused(8, 10e3)
    points = [*REAL[:4], slow, fused(13, 130e3), REAL[5]]
    assert 4 in contradictions(points, ALONE)
    assert [p.n for p in mark_doubtful(points, ALONE) if p.doubt is not None] == [8]


def test_processes_do_not_gain_more_than_their_number() -> None:
    points = [FIRST, point("process", 2, [160e3, 161e3, 159e3])]
    assert [p.n for p in mark_doubtful(points, ALONE) if p.doubt is not None] == [2]


def test_rounds_that_differ_too_much() -> None:
    points = [FIRST, point("process", 2, [15e3, 60e3, 200e3])]
    assert contradictions(points, ALONE)[1].startswith("its rounds differ too much to tell: 0.")
    assert mark_doubtful(points, ALONE)[1].doubt is not None
    wide = [FIRST, point("process", 2, [45e3, 60e3, 75e3])]
    assert contradictions(wide, ALONE).keys() == {1}, "measured again"
    assert mark_doubtful(wide, ALONE)[1].doubt is None, "and used, with its spread, where it stays so"


def test_a_point_that_was_measured_once_needs_a_larger_contradiction() -> None:
    def once(n: int, gain: float) -> Point:
        return Point("fused", n, samples_per_s=ALONE * gain, gain=gain)

    assert contradictions([once(4, 1.0), once(5, 1.8)], ALONE) == {}
    assert contradictions([once(4, 1.0), once(5, 2.2)], ALONE).keys() == {0, 1}
    assert contradictions([Point("fused", 8, fault="out of memory")], ALONE) == {}


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_noise_alone_marks_few_points_and_a_wrong_one_is_found(seed: int) -> None:
    """Nine rounds with heavy tails around a real curve, and one point that is five times as fast."""
    random = np.random.default_rng(seed)

    def noisy(n: int, factor: float = 1.0) -> Point:
        rate = factor * n / (1e-5 + 4e-6 * n)
        return point("fused", n, [*(rate * np.exp(0.05 * random.standard_t(2, size=9)))])

    points = [FIRST, *(noisy(n) for n in (1, 2, 3, 5, 8, 13, 21))]
    assert sum(p.doubt is not None for p in mark_doubtful(points, ALONE)) <= 1
    points[5] = noisy(8, factor=5.0)
    doubts = [p.n for p in mark_doubtful(points, ALONE) if p.doubt is not None]
    assert 8 in doubts
    assert len(doubts) <= 2
