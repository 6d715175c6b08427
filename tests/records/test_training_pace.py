"""The time left of a production training."""

from __future__ import annotations

import pytest

from raygpu.records.training_pace import TrainingPace


def test_the_first_epoch_s_warm_up_does_not_repeat() -> None:
    pace, now = TrainingPace(), 0.0
    assert pace.left_s(now, 20) is None
    pace.start(now)
    pace.end_epoch(now := 30.0)  # compiled, and twenty seconds slower
    assert pace.left_s(now, 19) == 19 * 30.0, "more is not known yet"
    for _ in range(4):
        pace.end_epoch(now := now + 10.0)
    assert pace.left_s(now, 15) == 150.0
    assert pace.left_s(now + 4.0, 15) == 146.0


def test_steps_tell_within_the_first_epoch_and_evaluation_counts_in_later_ones() -> None:
    pace = TrainingPace()
    pace.start(0.0)
    pace.step(8.0, 10, 100)
    assert pace.left_s(8.0, 5) is None, "the start of the workers is in it"
    pace.step(9.0, 20, 100)
    assert pace.left_s(9.0, 5) == pytest.approx(4.8 * 10.0)
    pace.end_epoch(19.0)
    pace.step(20.0, 10, 100)
    pace.end_epoch(32.0)  # ten seconds of steps, three of evaluation
    assert pace.left_s(32.0, 3) == pytest.approx(3 * 13.0)
    pace.step(38.5, 50, 100)
    assert pace.left_s(38.5, 3) == pytest.approx(2.5 * 13.0)


def test_an_epoch_that_lost_a_worker_does_not_count() -> None:
    pace = TrainingPace()
    pace.start(0.0)
    for end in (10.0, 20.0, 30.0):
        pace.end_epoch(end)
    pace.start(200.0)
    pace.end_epoch(215.0)
    assert pace.left_s(215.0, 4) == 40.0
