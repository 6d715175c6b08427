"""`trials.csv`: read as it was written, hyper-parameters named as other columns included."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from raygpu.config import SweepConfig
from raygpu.errors import BadInput
from raygpu.records.run_directory import RunDirectory
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
    (tmp_path / "trials.csv").write_text("")
    with pytest.raises(BadInput, match=r"trials.csv: line 0: ValueError: empty, .*--resume writes it anew"):
        read(tmp_path / "trials.csv")


def test_names_that_begin_as_the_prefix_of_other_names_stay_apart(tmp_path: Path) -> None:
    values = {"x": 1, "space.x": 2, "gpu": 3, "space.gpu": 4, "flag": False}
    write(tmp_path / "trials.csv", [record(0, 0.75, **values)])
    (row,) = read(tmp_path / "trials.csv")
    assert row.hyperparameters == values


def test_a_file_whose_end_is_missing_is_one_line(tmp_path: Path) -> None:
    write(tmp_path / "trials.csv", [record(0, 0.75, lr=0.0193), record(1, 0.5, lr=0.1318)])
    content = (tmp_path / "trials.csv").read_bytes()
    for cut in range(1, len(content.rstrip())):
        if content[cut - 1 : cut] != b"\n":
            (tmp_path / "trials.csv").write_bytes(content[:cut])
            with pytest.raises(BadInput, match=r"trials.csv: its end is missing; --resume writes it anew"):
                read(tmp_path / "trials.csv")
    (tmp_path / "trials.csv").write_bytes(content.replace(b",0.1318", b""))
    with pytest.raises(BadInput, match="line 3: ValueError: fewer cells than columns"):
        read(tmp_path / "trials.csv")


def test_a_row_with_more_cells_than_columns_is_one_line(tmp_path: Path) -> None:
    write(tmp_path / "trials.csv", [record(0, 0.75)])
    text = (tmp_path / "trials.csv").read_text().rstrip()
    (tmp_path / "trials.csv").write_text(f"{text},1,2\n")
    with pytest.raises(BadInput, match=r"trials.csv: line 2: ValueError: more cells than columns; --resume"):
        read(tmp_path / "trials.csv")


@pytest.mark.parametrize("text", ["", "0x10", "1_000", "1", "True", "None", "2024-01-02"])
def test_a_text_is_read_as_the_space_of_the_sweep_has_it(tmp_path: Path, text: str) -> None:
    """Without `when` the second trial would have the text, too: its cell is as empty as that of an empty text."""
    folder = RunDirectory.create(tmp_path, "night")
    space: dict[str, Any] = {
        "lr": {"uniform": [0, 1]}, "kind": {"choice": ["a", "b"]},
        "name": {"choice": [text, "other"], "when": {"kind": "a"}},
    }  # fmt: skip
    folder.write_config(SweepConfig.model_validate({"experiment": "m:f", "trials": 2, "space": space}), tmp_path)
    trials = [{"lr": 0.5, "kind": "a", "name": text}, {"lr": 0.5, "kind": "b"}]
    write(folder.trials_csv, [record(i, 0.75, **values) for i, values in enumerate(trials)])
    assert [row.hyperparameters for row in read(folder.trials_csv)] == trials


def test_two_values_with_one_text_do_not_keep_a_report_from_its_rows(tmp_path: Path) -> None:
    folder = RunDirectory.create(tmp_path, "night")
    config = {"experiment": "m:f", "trials": 1, "space": {"name": {"choice": [1, "1"]}}}
    folder.write_config(SweepConfig.model_validate(config), tmp_path)
    write(folder.trials_csv, [record(0, 0.75, name="1")])
    assert [row.hyperparameters for row in read(folder.trials_csv)] == [{"name": 1}]


def test_names_of_columns_that_other_sweeps_have_stay_hyper_parameters(tmp_path: Path) -> None:
    values = {"last.lr": 1, "last.": 2, "set": 3, "repeat": 4, "fold": 5, "changes": 6, "lr": 7}
    write(tmp_path / "trials.csv", [record(0, 0.75, **values)])
    (row,) = read(tmp_path / "trials.csv")
    assert row.hyperparameters == values


def test_of_equal_trials_the_first_one_drawn_comes_first(tmp_path: Path) -> None:
    write(tmp_path / "trials.csv", [record(10_000, 0.75), record(9998, 0.75)])
    assert [row.trial_id for row in ranked(read(tmp_path / "trials.csv"), maximize=True)] == ["t9998", "t10000"]


def test_a_long_cell_is_read_and_a_stray_quote_is_one_line(tmp_path: Path) -> None:
    file, long = tmp_path / "trials.csv", "x" * 140_000
    write(file, [record(0, 0.75, name=long), record(1, 0.5, name="b")])
    assert [row.hyperparameters for row in read(file)] == [{"name": long}, {"name": "b"}]
    file.write_text(file.read_text().replace("t0000", '"t0000'))
    with pytest.raises(BadInput, match=r"trials.csv: line \d: Error: .*; --resume writes it anew"):
        read(file)
    file.write_bytes(b"id,status\n\xff\xfe,finished\n")
    with pytest.raises(BadInput, match=r"trials.csv: line \d: UnicodeDecodeError: .*; --resume writes it anew"):
        read(file)
