"""`sets.csv`, and `trials.csv` of a sweep with repeats: read as they were written."""

from __future__ import annotations

from pathlib import Path

import pytest

from raygpu.config import SweepConfig
from raygpu.errors import BadInput
from raygpu.records import sets_csv, trials_csv
from raygpu.records.run_directory import RunDirectory
from raygpu.records.set_records import ranked_sets
from raygpu.search.repeats import Repetition
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import Trial
from tests.repeat_cases import records, repeat, sets_of


def test_sets_are_read_as_they_were_written(tmp_path: Path) -> None:
    sets = sets_of([0.5, 0.7, 0.9], [0.8, None, None], [None])
    sets_csv.write(tmp_path / "sets.csv", sets)
    first, second, third = sets_csv.read(tmp_path / "sets.csv")
    assert (first.set_id, first.status, first.repeats) == ("t0000", "complete", 3)
    assert (first.score, first.standard_error) == (sets[0].mean, sets[0].error)
    assert first.hyperparameters == {"lr": 0.1}
    assert (second.status, second.score, second.standard_error, second.repeats) == ("failed", 0.8, None, 1)
    assert (third.score, third.repeats) == (None, 0)
    assert sets_csv.read(tmp_path / "none.csv") == []


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "sets.csv").write_text("set,status,score\nt0000,complete,high\n")
    with pytest.raises(BadInput, match=r"sets.csv: line 2: .*--resume writes it anew"):
        sets_csv.read(tmp_path / "sets.csv")


def test_trials_have_columns_for_set_and_repeat_where_there_are_repeats(tmp_path: Path) -> None:
    trials_csv.write(tmp_path / "trials.csv", [*records([0.5, 0.7]), repeat(1, 1, 0.4, fold=1)])
    lines = (tmp_path / "trials.csv").read_text().splitlines()
    assert lines[0].endswith("rgu_hours,set,repeat,fold,lr")
    assert lines[2].endswith(",t0000,2,,0.1")
    assert lines[3].endswith(",t0001,2,2,0.2")
    rows = trials_csv.read(tmp_path / "trials.csv")
    assert [row.hyperparameters for row in rows] == [{"lr": 0.1}, {"lr": 0.1}, {"lr": 0.2}]


def test_texts_and_names_of_other_columns_are_read_as_the_space_has_them(tmp_path: Path) -> None:
    folder = RunDirectory.create(tmp_path, "night")
    space = {"name": {"choice": ["", "0x10"]}, "last.lr": {"uniform": [0, 1]}, "repeat": 2}
    folder.write_config(SweepConfig.model_validate({"experiment": "m:f", "trials": 2, "space": space}), tmp_path)
    values = [{"name": name, "last.lr": 0.5, "repeat": 2} for name in ("", "0x10")]
    trials = [TrialRecord(Trial(f"t000{i}-1", 0, each, 0), "finished", 0.9 - i) for i, each in enumerate(values)]
    sets_csv.write(folder.sets_csv, ranked_sets(trials, Repetition(2), maximize=True))
    assert [row.hyperparameters for row in sets_csv.read(folder.sets_csv)] == values


def test_a_stray_quote_is_one_line(tmp_path: Path) -> None:
    sets_csv.write(tmp_path / "sets.csv", sets_of([0.5, 0.7, 0.9], [0.8, 0.3, 0.1]))
    text = (tmp_path / "sets.csv").read_text()
    (tmp_path / "sets.csv").write_text(text.replace("t0000", '"t0000'))
    with pytest.raises(BadInput, match=r"sets.csv: line \d: Error: .*; --resume writes it anew"):
        sets_csv.read(tmp_path / "sets.csv")
