"""The seconds of a step on a GPU: launches of small operators, or arithmetic that fills it."""

from __future__ import annotations

import pytest

from raygpu.planning.step_cost import ARRAY_SPEED, FLOP_PER_S, LAUNCH_S, StepCost

SMALL = StepCost(100, 1e-3 * FLOP_PER_S * LAUNCH_S)
LARGE = StepCost(100, 1000 * FLOP_PER_S * LAUNCH_S)


def test_a_step_takes_its_launches_or_its_arithmetic() -> None:
    assert SMALL.alone_s == pytest.approx(100 * LAUNCH_S)
    assert LARGE.alone_s == pytest.approx(1000 * LAUNCH_S)


def test_small_steps_take_as_long_for_many_members_as_for_one() -> None:
    assert SMALL.array_s(64, SMALL.alone_s) == SMALL.alone_s
    assert SMALL.array_s(1_000_000, SMALL.alone_s) > SMALL.alone_s


def test_members_that_fill_a_gpu_take_longer_together_than_in_turn() -> None:
    assert LARGE.array_s(8, LARGE.alone_s) == pytest.approx(8 * LARGE.alone_s / ARRAY_SPEED)


def test_a_gpu_that_is_faster_than_assumed_has_the_speed_that_was_measured() -> None:
    assert LARGE.array_s(8, LARGE.alone_s / 3) == pytest.approx(8 * LARGE.alone_s / 3 / ARRAY_SPEED)
