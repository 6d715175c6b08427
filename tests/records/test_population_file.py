"""Takeovers in a file: added while a sweep runs, written anew at its end, read whatever a crash left."""

from __future__ import annotations

from pathlib import Path

from raygpu.records import population_file, trials_csv
from raygpu.search.trial_record import Change, TrialRecord
from raygpu.search.trials import Trial

CHANGES = {
    "t0001": [Change(2, "t0000", {"lr": 0.1}), Change(6, "t0002", {"lr": 0.3})],
    "t0002": [Change(4, "t0000", {"lr": 0.2})],
}


def test_what_was_added_is_read_and_written_again(tmp_path: Path) -> None:
    path = tmp_path / "population.jsonl"
    for name, changes in CHANGES.items():
        for change in changes:
            population_file.add(path, name, change)
            population_file.add(path, name, change)
    with path.open("a") as file:
        file.write('{"trial": "t0003", "ep')
    assert population_file.read(path) == CHANGES
    population_file.write(path, CHANGES)
    assert [line[11:31] for line in path.read_text().splitlines()] == [
        't0001", "epoch": 2, ', 't0002", "epoch": 4, ', 't0001", "epoch": 6, '
    ]  # fmt: skip
    assert population_file.read(path) == CHANGES


def test_without_a_file_or_a_place_there_is_nothing(tmp_path: Path) -> None:
    population_file.add(tmp_path / "missing" / "population.jsonl", "t0000", CHANGES["t0002"][0])
    assert population_file.read(tmp_path / "population.jsonl") == {}


def test_the_table_of_trials_has_first_and_last_values(tmp_path: Path) -> None:
    records = [TrialRecord(Trial(f"t000{i}", i, {"lr": 0.5, "hidden": 16})) for i in range(2)]
    records[1].changes = CHANGES["t0001"]
    trials_csv.write(tmp_path / "trials.csv", records)
    header, first, second = (tmp_path / "trials.csv").read_text().splitlines()
    assert header.endswith("changes,last.lr,lr,hidden")
    assert first.endswith("0,0.5,0.5,16")
    assert second.endswith("2,0.3,0.5,16")
    assert [dict(row.hyperparameters) for row in trials_csv.read(tmp_path / "trials.csv")] == [
        {"lr": 0.5, "hidden": 16}
    ] * 2
