"""Sets of hyper-parameters in words: their plan, their table, and whether the best one is better."""

from __future__ import annotations

from typing import Any

import pytest

from raygpu.cli.formatting import score_text
from raygpu.cli.plan_view import sweep_lines
from raygpu.cli.set_view import single_line, table, verdict
from raygpu.config import SweepConfig
from raygpu.records.set_records import SetRecord, compared
from raygpu.search.scoring import Scoring
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import Trial
from tests.repeat_cases import sets_of

HOW = "paired t-test over 3 repeats, Holm's correction for"


def lines(sets: list[SetRecord]) -> list[str]:
    found = compared(sets)
    return verdict(sets, {"comparison": found and found.as_dict()})


def test_a_winner_is_told() -> None:
    sets = sets_of([0.9, 0.91, 0.92], [0.1, 0.11, 0.13], [0.2, 0.21, 0.23])
    assert lines(sets) == [f"t0000 is better than each of the 2 other complete sets ({HOW} 2, p < 0.05)"]


def test_all_scores_of_a_table_have_as_many_digits() -> None:
    rows = table("accuracy", "last", sets_of([0.9, 0.91, 0.92], [0.8, 0.8001, 0.8002], [0.1, 0.5, 0.3]))
    assert [row[1] for row in rows[1:]] == ["0.9100 ± 0.0058", "0.8001 ± 0.0001", "0.3000 ± 0.1155"]


def test_what_cannot_be_told_apart_is_named() -> None:
    sets = sets_of([0.9, 0.91, 0.92], [0.89, 0.92, 0.9], [0.2, 0.21, 0.23])
    told = f"t0000 cannot be told apart from t0001; it is better than the other 1 ({HOW} 2, p < 0.05)"
    assert lines(sets) == [told]


def test_many_are_counted() -> None:
    (line,) = lines(sets_of(*([0.9 + place / 1000, 0.91 - place / 1000, 0.92] for place in range(9))))
    assert "cannot be told apart from" in line
    assert " and 3 more (paired" in line


def test_sets_that_lack_repeats_are_counted_with_the_reason_and_named_where_their_mean_is_better() -> None:
    sets = sets_of([0.5, 0.51, 0.52], [0.9, 0.91, None], [None, None, 0.1])
    assert lines(sets) == [
        "2 sets lack repeats and rank below the complete ones: 2 failed; of these, a better mean has"
        " t0001 (0.9050 ± 0.0050, 2/3)"
    ]


def test_a_seed_that_seems_to_be_ignored_is_told() -> None:
    assert lines(sets_of([0.5] * 3, [0.4] * 3))[-1].endswith("the training does not seem to use its seed")


def test_the_table_has_means_with_errors() -> None:
    assert table("accuracy", "last", sets_of([0.5, 0.7, 0.9], [0.3, None, None], [None])) == [
        ["set", "accuracy (last epoch)", "repeats", "lr"],
        ["t0000", "0.70 ± 0.12", "3/3", "0.1"],
        ["t0001", "0.3", "1/3", "0.2"],
        ["t0002", "-", "0/3", "0.3"],
    ]


@pytest.mark.parametrize(
    ("mean", "error", "text"),
    [
        (0.97123, 0.00314, "0.9712 ± 0.0031"),
        (12345.6, 42.0, "12346 ± 42"),
        (0.5, 0.0, "0.5 ± 0"),
        (0.5, None, "0.5"),
        (0.5, 1e-9, "0.5 ± 1e-09"),
    ],
)
def test_a_score_has_as_many_digits_as_its_error_allows(mean: float, error: float | None, text: str) -> None:
    assert score_text(mean, error) == text


@pytest.mark.parametrize(
    ("fields", "first"),
    [
        ({}, "16 trials of a:b"),
        ({"repeats": 5}, "16 sets x 5 repeats = 80 trainings of a:b"),
        ({"repeats": 8, "racing": True}, "16 sets x 8 repeats = 128 trainings at most of a:b"),
    ],
)
def test_the_plan_says_how_many_trainings_there_are(fields: dict[str, Any], first: str) -> None:
    config = SweepConfig(experiment="a:b", trials=16, metric="accuracy", **fields)
    told = sweep_lines(config, simulated=False)
    assert first in told[0]
    assert len(told) == 1 + ("racing" in fields)


def test_one_training_of_each_is_told_where_it_cannot_tell() -> None:
    scoring = Scoring("accuracy", True)
    trials = [TrialRecord(Trial(Trial.name(n), n, {}), "finished", score) for n, score in enumerate((0.98, 0.975, 0.9))]
    line = single_line(scoring, trials, 360)
    assert line is not None
    assert line.startswith("accuracy 0.9800 of 360 samples has a standard error of 0.0074; 1 other trial is within it")
    assert single_line(Scoring("loss", False), trials, 360) is None
    assert single_line(scoring, trials, None) is None
    assert single_line(scoring, trials[1:], 100_000) is None
