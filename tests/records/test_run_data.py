from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raygpu.records.run_data import RunData
from raygpu.records.run_directory import RunDirectory
from raygpu.records.timeline import RunTimeline
from raygpu.records.trials_csv import TrialRow


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
