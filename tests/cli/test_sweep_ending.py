"""The lines at a sweep's end say why trials failed, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raygpu.cli.sweep_ending import ending
from raygpu.records.run_directory import RunDirectory
from raygpu.records.score_on_test import ScoreOnTest

SUMMARY: dict[str, Any] = {
    "best": None, "data": "real", "completed": 0, "diverged": 0, "stopped_early": 0, "failed": 3, "interrupted": 0,
    "wall_s": 5.0, "command_s": 20.0, "predicted": {}, "metric": "accuracy", "common_failure": None,
}  # fmt: skip
FAILURES = ["OSError: disk", "ValueError: no digits in line 3", "ValueError: no digits in line 4"]


def lines(**changed: Any) -> list[str]:
    return ending(SUMMARY | changed, FAILURES, RunDirectory(Path("/runs/x")), [None], interrupted=False)


def test_failures_are_counted_by_their_type() -> None:
    why = next(line for line in lines() if line.startswith("why"))
    assert why == "why trials failed (2 of 3: ValueError: no digits in line 3): /runs/x/trials/<id>/error.txt"


def test_a_failure_of_all_is_told_once() -> None:
    found = lines(common_failure="ValueError: no digits in line 3")
    assert sum("ValueError" in line for line in found) == 1
    assert "why trials failed: /runs/x/trials/<id>/error.txt" in found


def test_the_score_on_the_test_data_is_told_before_the_next_command() -> None:
    best = {"trial_id": "t0006", "score": 0.98}
    score = ScoreOnTest.of(360, {"t0006": {"loss": 0.1, "accuracy": 0.97222}})
    found = lines(best=best, test=score.as_dict())
    place = found.index("test accuracy 0.97222 (of 360 samples never used by the search)")
    assert found[place + 1] == "the best trial, to train it for production: raygpu train --from /runs/x"
    assert not any(line.startswith("test ") for line in lines(best=best, test=None))
    assert not any(line.startswith("test ") for line in lines(best=best)), "of an earlier version"


def test_a_best_trial_that_was_stopped_is_told_before_its_training_is() -> None:
    best = {"trial_id": "t0006", "score": 0.3, "ended": "stopped at epoch 3 of 27"}
    found = lines(best=best)
    place = next(i for i, line in enumerate(found) if line.startswith("the best trial, to train it for production"))
    assert found[place - 1].startswith(
        "the best trial, t0006, was stopped at epoch 3 of 27: its score is of what it had"
    )
    assert not any("at epoch" in line for line in lines(best=best | {"ended": None}))


def test_a_sweep_that_ran_out_of_time_says_what_is_left() -> None:
    said = next(
        line for line in lines(out_of_time=True, num_trials=10, completed=2, interrupted=1) if "used up" in line
    )
    assert said.startswith("time_budget_s is used up, with 1 trials under way and 4 not begun; for as long again: ")
    assert not any("used up" in line for line in lines())


def test_a_populations_takeovers_are_counted() -> None:
    said = "a trial took over another one's parameters (population.jsonl); the table has each trial's last values"
    assert any(line.startswith(f"12 times {said}") for line in lines(taken_over=12))
    assert any(line.startswith(f"once {said}") for line in lines(taken_over=1))
    assert not any("took over" in line for line in lines(taken_over=0))
