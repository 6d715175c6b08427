"""How long places take for a queue."""

from __future__ import annotations

import pytest

from raygpu.planning.makespan import makespan_s


def test_a_trial_waits_for_the_first_free_place() -> None:
    assert makespan_s([3.0, 1.0], [[5.0, 1.0]], 2) == 6.0
    assert makespan_s([], [[4.0] * 5], 4) == 8.0
    assert makespan_s([], [], 2) == 0.0


def test_a_block_waits_for_the_end_of_the_one_before() -> None:
    assert makespan_s([2.0], [[], [1.0, 1.0]], 2) == 3.0
    assert makespan_s([], [[1.0, 4.0], [1.0, 1.0]], 2) == 5.0


def test_fewer_at_once_are_faster() -> None:
    assert makespan_s([1.0, 3.0], [], 2, lambda active: active / 2) == 1.0 + 2.0 / 2


def test_a_long_queue_is_summed_up() -> None:
    assert makespan_s([], [[0.01] * 10_000], 4) == pytest.approx(25.0, rel=0.01)
