"""`trials.csv`: read as it was written, hyper-parameters named as other columns included."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from raygpu.errors import BadInput
from raygpu.records.trials_csv import ranked, read, write
from raygpu.search.scoring import TrialScores
from tests.report_cases import record


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    trials = [
        record(0, 0.75, lr=1e-05, gpu=3, kind="relu", flag=True),
        record(1, -math.inf, diverged=True, lr=0.5),
        record(2, None, "failed", lr=0.25),
    ]
    write(tmp_path / "trials.csv", trials)
    first, second, third = read(tmp_path / "trials.csv")
    assert (first.trial_id, first.status, first.score, first.epochs, first.gpu) == ("t0000", "finished", 0.75, 3, 0)
    assert first.hyperparameters == {"lr": 1e-05, "gpu": 3, "kind": "relu", "flag": True}
    assert first.finite
    assert (second.status, second.score, second.finite) == ("diverged", -math.inf, False)
    assert (third.score, third.finite, third.hyperparameters) == (None, False, {"lr": 0.25})


def test_equal_scores_are_ranked_by_the_validation_loss(tmp_path: Path) -> None:
    trials = [record(0, 0.75), record(1, 0.75), record(2, 0.5), record(3, 0.75)]
    for each, loss in zip(trials, (0.4, 0.2, 0.1, None), strict=True):
        each.scores = TrialScores(last=each.score, last_loss=loss)
    write(tmp_path / "trials.csv", trials)
    rows = read(tmp_path / "trials.csv")
    assert [row.validation_loss for row in rows] == [0.4, 0.2, 0.1, None]
    assert [row.trial_id for row in ranked(rows, maximize=True)] == ["t0001", "t0000", "t0003", "t0002"]
    assert [row.trial_id for row in ranked(rows, maximize=False)][:2] == ["t0002", "t0001"]


def test_no_file_has_no_rows(tmp_path: Path) -> None:
    assert read(tmp_path / "trials.csv") == []


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "trials.csv").write_text("id,status,score\nt0000,finished,high\n")
    with pytest.raises(BadInput, match=r"trials.csv: line 2: .*--resume writes it anew"):
        read(tmp_path / "trials.csv")


def test_names_that_begin_as_the_prefix_of_other_names_stay_apart(tmp_path: Path) -> None:
    values = {"x": 1, "space.x": 2, "gpu": 3, "space.gpu": 4, "flag": False}
    write(tmp_path / "trials.csv", [record(0, 0.75, **values)])
    (row,) = read(tmp_path / "trials.csv")
    assert row.hyperparameters == values


def test_a_row_with_more_cells_than_columns_is_one_line(tmp_path: Path) -> None:
    write(tmp_path / "trials.csv", [record(0, 0.75)])
    text = (tmp_path / "trials.csv").read_text().rstrip()
    (tmp_path / "trials.csv").write_text(f"{text},1,2\n")
    with pytest.raises(BadInput, match=r"trials.csv: line 2: ValueError\('more cells than columns'\); --resume"):
        read(tmp_path / "trials.csv")
