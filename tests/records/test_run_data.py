from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest

from raygpu.records.run_data import RunData
from raygpu.records.run_directory import RESUMED_AT, RunDirectory
from raygpu.records.timeline import Occupancy, RunTimeline, Timeline
from raygpu.records.trials_csv import TrialRow
from raygpu.search.trials import EpochResult
from tests.report_cases import folder_of, record, sweep_folder


@pytest.mark.parametrize(
    ("config", "best"),
    [
        ({"metric": "accuracy"}, "t0001"),
        ({"metric": "loss"}, "t0000"),
        ({}, "t0000"),
        ({"metric": "accuracy", "direction": "min"}, "t0000"),
        ({"metric": "speed", "direction": "max"}, "t0001"),
    ],
)
def test_without_a_direction_the_metrics_name_says_which_trial_is_best(config: dict[str, Any], best: str) -> None:
    rows = [TrialRow(f"t000{i}", "finished", 0.1 + i, 1, None, None, {}) for i in range(2)]
    run = RunData(RunDirectory(Path()), "sweep", config, {}, rows, RunTimeline())
    assert run.ranked()[0].trial_id == best


@pytest.mark.parametrize(
    ("before", "last_epoch_s", "status", "score"),
    [
        ("failed", 90.0, "failed", 0.5),
        ("failed", 110.0, "under way", 0.25),  # it is trained again
        ("stopped", 90.0, "stopped", 0.5),
        ("interrupted", 90.0, "failed", 0.25),
    ],
)
def test_a_trial_of_a_resumed_sweep_is_told_of_by_what_came_last(
    before: str, last_epoch_s: float, status: str, score: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = sweep_folder(tmp_path / "run", trials=[record(0, 0.5, before)])
    folder.begin_again()
    found = RunTimeline([1.0, 101.0], [Occupancy("t0000", ("t0000",), 0, 1.0, 1.0, 100.0, "error")])
    found.curves["t0000"], found.ended_s["t0000"] = {3: {"accuracy": 0.25}}, {3: last_epoch_s}
    found.ended_s["t0001"] = {1: 5e9}
    monkeypatch.setattr("raygpu.records.run_data.timeline.read", lambda path: found)
    (row,) = RunData.load(folder).trials
    assert (row.status, row.score, row.hyperparameters["hidden"]) == (status, score, 32)


def goes_on(folder: RunDirectory, trial_id: str, epoch: int) -> None:
    """Add an epoch of a trial, of a moment to come, to a run's timeline."""
    noted = {"event": "epochs", "trial": trial_id, "at": 5e9, "rows": [[epoch, {"validation/accuracy": 0.9}]]}
    with folder.timeline.open("a") as file:
        file.write(json.dumps(noted) + "\n")


def test_a_resumed_run_has_its_end_before_until_it_notes_something_new(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "run")
    before = RunData.load(folder)
    folder.begin_again()
    for _ in range(2):
        again = RunData.load(folder)
        assert (again.ended, again.trials, again.timeline.curves) == (True, before.trials, before.timeline.curves)
        assert again.summary[RESUMED_AT] > 0
        Timeline(folder.timeline, "accuracy").close()  # a resume that is killed before its first epoch
    goes_on(folder, "t0020", 1)
    assert not RunData.load(folder).ended


def test_a_sweep_that_goes_on_has_hyperparameters_and_trials_of_its_end_before(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "run")
    before = RunData.load(folder).trials
    folder.begin_again()
    goes_on(folder, "t0020", 1)
    assert RunData.load(folder).trials == [*before, TrialRow("t0020", "under way", 0.9, 1, None, None, {})]
    folder.timeline.unlink()  # as of a raygpu without one
    goes_on(folder, "t0020", 1)
    assert RunData.load(folder).trials[:20] == before


def test_a_failed_trial_that_is_trained_again_has_not_failed(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "run")
    time.sleep(0.02)  # a timeline has hundredths of a second
    folder.begin_again()
    again = Timeline(folder.timeline, "accuracy")
    again.go_back("t0019", 0)
    again.close()
    assert RunData.load(folder).trials[-1].status == "failed", "of the end before"
    goes_on(folder, "t0020", 1)
    row = RunData.load(folder).trials[19]
    assert (row.trial_id, row.status, row.epochs) == ("t0019", "under way", 0)
    fails(folder, "t0019")
    assert RunData.load(folder).trials[19].status == "failed"


def fails(folder: RunDirectory, trial_id: str) -> None:
    """Add the end of a trial that fails at a moment to come to a run's timeline."""
    stay = {"name": trial_id, "trials": [trial_id], "share": 1.0, "from": 5e9, "to": 6e9, "end": "error"}
    with folder.timeline.open("a") as file:
        file.write(json.dumps({"event": "run", **stay}) + "\n")


def test_failed_trials_that_fail_again_at_once_are_shown(tmp_path: Path) -> None:
    made = record(0, None, "failed")
    made.epochs = 0
    folder = sweep_folder(tmp_path / "run", trials=[made])
    folder.begin_again()
    assert RunData.load(folder).ended
    fails(folder, "t0000")
    run = RunData.load(folder)
    assert (run.ended, [row.status for row in run.trials]) == (False, ["failed"])


@pytest.mark.parametrize(("rule", "score"), [("last", 0.5), ("best", 0.75)])
def test_a_run_under_way_is_scored_by_the_rule_of_its_sweep(rule: str, score: float, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "run", "sweep", {"metric": "accuracy", "score": rule})
    timeline = Timeline(folder.timeline, "accuracy")
    for epoch, accuracy in enumerate((0.25, 0.75, 0.5), 1):
        timeline.epochs("t0000", [EpochResult(epoch, {"validation/accuracy": accuracy, "train/loss": 1.0})])
    timeline.epochs("t0001", [EpochResult(1, {"validation/accuracy": 0.9, "train/loss": math.nan})])
    timeline.flush()
    assert [(row.trial_id, row.score) for row in RunData.load(folder).ranked()] == [("t0000", score)]
