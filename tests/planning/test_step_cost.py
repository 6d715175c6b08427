"""The speed of a step on a GPU: launches of small operators, or arithmetic that fills it."""

from __future__ import annotations

import pytest

from raygpu.planning.step_cost import ARRAY_SPEED, FLOP_PER_S, LAUNCH_S, StepCost

SMALL = StepCost(32, 100, 1e-3 * FLOP_PER_S["float32"] * LAUNCH_S)
LARGE = StepCost(32, 100, 1000 * FLOP_PER_S["float32"] * LAUNCH_S)


def test_a_step_takes_its_launches_or_its_arithmetic() -> None:
    assert SMALL.samples_per_s == pytest.approx(32 / (100 * LAUNCH_S))
    assert LARGE.samples_per_s == pytest.approx(32 / (1000 * LAUNCH_S))


def test_small_steps_take_as_long_for_many_members_as_for_one() -> None:
    assert SMALL.gain(64) == 64
    assert SMALL.gain(1_000_000) == pytest.approx(ARRAY_SPEED * 100 / 1e-3)


def test_members_that_fill_a_gpu_are_slower_together_than_in_turn() -> None:
    assert LARGE.gain(8) == pytest.approx(ARRAY_SPEED)


def test_arithmetic_is_faster_on_tensor_cores() -> None:
    fast = StepCost(32, 100, LARGE.flop, "tf32")
    assert fast.samples_per_s == pytest.approx(LARGE.samples_per_s * FLOP_PER_S["tf32"] / FLOP_PER_S["float32"])
