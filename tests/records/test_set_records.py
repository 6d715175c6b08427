"""A set's score is the mean over its repeats, and one that lacks repeats ranks below."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
from scipy import stats

from raygpu.records.device import Device
from raygpu.records.set_records import compared, ranked_sets
from raygpu.records.trial_records import Records
from raygpu.search.repeats import Repetition
from raygpu.search.scoring import Scoring
from raygpu.search.trials import EpochResult, Trial
from tests.repeat_cases import records, repeat, sets_of


def test_the_score_is_the_mean_with_its_standard_error() -> None:
    (found,) = sets_of([0.5, 0.7, 0.9])
    assert found.mean == pytest.approx(0.7)
    assert found.error == pytest.approx(stats.sem([0.5, 0.7, 0.9]))
    assert (found.set_id, found.is_complete, found.status) == ("t0000", True, "complete")
    assert found.best is not None
    assert found.best.trial.trial_id == "t0000-3"
    assert found.metrics() == pytest.approx({"set/score": 0.7, "set/standard_error": found.error, "set/repeats": 3.0})


def test_of_repeats_with_equal_scores_the_one_with_the_lower_validation_loss_is_the_best() -> None:
    (found,) = sets_of([0.7, 0.7, 0.5])
    for record, loss in zip(found.trials, (0.4, 0.3, 0.1), strict=True):
        record.scores.last_loss = loss
    assert found.best is found.trials[1]


def test_a_set_that_lacks_repeats_ranks_below_whatever_its_mean() -> None:
    sets = sets_of(
        [0.5, 0.5, 0.5], [0.9, 0.9, None], [0.99], [0.6, 0.6, 0.6], [0.8, 0.8, -math.inf], [None, None, None]
    )
    assert [each.set_id for each in sets] == ["t0003", "t0000", "t0001", "t0004", "t0002", "t0005"]
    assert [each.status for each in sets] == ["complete", "complete", "failed", "diverged", "runs", "failed"]
    assert sets[-1].mean is None
    assert sets[2].mean == pytest.approx(0.9)


def test_smaller_scores_are_better_where_they_are() -> None:
    found = ranked_sets(records([0.5, 0.4], [0.3, 0.2]), Repetition(2), maximize=False)
    assert [each.set_id for each in found] == ["t0001", "t0000"]
    assert found[0].best is not None
    assert found[0].best.trial.trial_id == "t0001-2"


def test_what_was_stopped_counts_for_nothing_but_its_own_row() -> None:
    made = [*records([0.5, 0.5]), repeat(1, 0, 0.9, "stopped")]
    first, second = ranked_sets(made, Repetition(2), maximize=True, saved={"t0001-2"})
    assert (first.set_id, second.status, second.mean, second.num_finished) == ("t0000", "stopped", 0.9, 0)


def test_what_is_under_way_counts_until_a_repeat_has_finished() -> None:
    made = [repeat(0, 0, 0.2, "running"), repeat(0, 1, 0.4, "running")]
    (found,) = ranked_sets(made, Repetition(2), maximize=True)
    assert (found.mean, found.runs, found.status) == (pytest.approx(0.3), True, "runs")
    made[0].status = "finished"
    (found,) = ranked_sets(made, Repetition(2), maximize=True)
    assert found.mean == 0.2


def test_racing_is_named() -> None:
    (found,) = ranked_sets(records([0.5, 0.5]), Repetition(4), maximize=True, saved={"t0000-3", "t0000-4"})
    assert found.status == "raced"


def test_complete_sets_alone_are_compared() -> None:
    found = compared(sets_of([0.9, 0.91, 0.92], [0.1, 0.11, 0.13], [0.95, 0.95, None]))
    assert found is not None
    assert (found.winner, found.worse, found.alike) == ("t0000", ["t0001"], [])
    assert compared(sets_of([0.9, 0.91, 0.92], [0.1, None, 0.13])) is None


def test_over_folds_the_error_is_larger() -> None:
    made = records([0.5, 0.6, 0.7, 0.8])
    (alone,) = ranked_sets(made, Repetition(4), maximize=True)
    (folded,) = ranked_sets(made, Repetition(2, 2), maximize=True)
    assert alone.error is not None
    assert folded.error is not None
    assert folded.error > 2 * alone.error  # (1 / 4 + 1 / 1) against 1 / 4


def kept(per_set: int = 2, **options: Any) -> Records:
    """Return the records of a sweep of two sets."""
    devices = [Device(0, "node", "0", "T4")]
    return Records(2 * per_set, Scoring("score", True), devices, 1, repetition=Repetition(per_set), **options)


def end(found: Records, place: int, number: int, score: float | None, error: str = "ValueError: x") -> None:
    trial = Trial(Trial.repeat_name(Trial.name(place), number), number, {}, number)
    found.start(trial)
    if score is None:
        found.end(trial.trial_id, "failed", error=error)
        return
    found.add(trial.trial_id, [EpochResult(1, {"score": score})], 0)
    found.end(trial.trial_id, "finished")


def test_trials_that_are_left_out_are_not_missing() -> None:
    found = kept()
    end(found, 0, 0, 0.5)
    end(found, 0, 1, 0.7)
    end(found, 1, 0, 0.1)
    assert found.interrupt(lambda record: None)  # short of t0001-2
    found.leave_out(3, {"t0001-2"})
    snapshot = found.snapshot()
    assert (snapshot.ended, snapshot.num_trials, snapshot.time_left_s) == (3, 3, 0.0)
    assert not found.interrupt(lambda record: None)
    assert [each.of_set and each.of_set.set_id for each in snapshot.leaders] == ["t0000", "t0001"]
    assert snapshot.best is not None
    assert snapshot.best.trial.trial_id == "t0000-2"
    assert found.set_of("t0001").status == "raced"


def test_the_repeats_of_one_bad_set_do_not_end_the_sweep() -> None:
    found = kept(3)
    for number in range(3):
        end(found, 0, number, None)
    assert found.common_failure(2) is None
    end(found, 1, 0, None)
    assert found.common_failure(2) == "ValueError: x"


def test_errors_of_several_lines_are_alike_by_their_type() -> None:
    end_of_stack, arguments = 'Traceback:\n  File "m.py", line 1, in f\n', "\n\nArguments:\n  mask=None"
    for other, common in (("ValueError", "ValueError: one Arguments: mask=None"), ("TypeError", None)):
        found = kept(1)
        end(found, 0, 0, None, f"{end_of_stack}ValueError: one{arguments}")
        end(found, 1, 0, None, f"{end_of_stack}{other}: two{arguments}")
        assert found.common_failure(2) == common


def test_of_equal_sets_the_first_one_drawn_is_the_best() -> None:
    trials = [repeat(place, number, 0.5) for place in (10_000, 9998) for number in range(2)]
    assert [each.set_id for each in ranked_sets(trials, Repetition(2), maximize=True)] == ["t9998", "t10000"]


def test_a_penalty_of_the_largest_float_has_a_mean_and_is_compared() -> None:
    found = kept()
    for place, number, score in ((0, 0, -sys.float_info.max), (0, 1, -sys.float_info.max), (1, 0, 0.5), (1, 1, 0.6)):
        end(found, place, number, score)
    best, worst = found.sets()
    assert (best.set_id, worst.set_id, worst.mean, worst.error) == ("t0001", "t0000", -1e300, 0.0)
    assert compared([best, worst]) is not None
