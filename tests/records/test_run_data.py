from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from raygpu.records.run_data import RunData
from raygpu.records.run_directory import RunDirectory
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
    ("before", "last_epoch_s", "status"),
    [
        ("failed", 90.0, "failed"),
        ("failed", 110.0, "under way"),  # it is trained again
        ("stopped", 90.0, "stopped"),
        ("interrupted", 90.0, "failed"),
    ],
)
def test_a_trial_of_a_resumed_sweep_is_told_of_by_what_came_last(
    before: str, last_epoch_s: float, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = sweep_folder(tmp_path / "run", trials=[record(0, 0.5, before)])
    folder.begin_again()
    found = RunTimeline([1.0, 101.0], [Occupancy("t0000", ("t0000",), 0, 1.0, 1.0, 100.0, "error")])
    found.curves["t0000"], found.ended_s["t0000"] = {3: {"accuracy": 0.25}}, {3: last_epoch_s}
    monkeypatch.setattr("raygpu.records.run_data.timeline.read", lambda path: found)
    (row,) = RunData.load(folder).trials
    assert (row.status, row.score) == (status, 0.25)


@pytest.mark.parametrize(("rule", "score"), [("last", 0.5), ("best", 0.75)])
def test_a_run_under_way_is_scored_by_the_rule_of_its_sweep(rule: str, score: float, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "run", "sweep", {"metric": "accuracy", "score": rule})
    timeline = Timeline(folder.timeline, "accuracy")
    for epoch, accuracy in enumerate((0.25, 0.75, 0.5), 1):
        timeline.epochs("t0000", [EpochResult(epoch, {"validation/accuracy": accuracy, "train/loss": 1.0})])
    timeline.epochs("t0001", [EpochResult(1, {"validation/accuracy": 0.9, "train/loss": math.nan})])
    timeline.flush()
    assert [(row.trial_id, row.score) for row in RunData.load(folder).ranked()] == [("t0000", score)]


def test_a_summary_of_an_earlier_version_is_that_of_a_first_start(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "run")
    assert "starts" not in (folder.read_summary() or {})
    assert RunData.load(folder).ended
    folder.begin_again()
    assert not RunData.load(folder).ended
