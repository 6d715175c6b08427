"""A sweep that its time budget ends: the best so far wins, and a resume goes on with the rest."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raygpu import sweep
from raygpu.cli.sweep_view import SweepConsole
from raygpu.engines.tune.interruption import Interruption
from raygpu.engines.tune.time_limits import TimeLimits
from raygpu.records.run_directory import RunDirectory
from raygpu.records.trial_records import Records

pytestmark = pytest.mark.timeout(300)


def test_what_is_under_way_or_not_begun_goes_on_with_a_resume(
    sweep_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "interrupted").touch()  # so that no trial interrupts the driver
    config = sweep_config(
        experiment="tests.cases:counts_its_epochs",
        trials=None,
        gpu={"fraction": 0.5},
        search={"algorithm": "grid"},
        checkpoint_s=600.0,
        tracking={"enabled": False},
        time_budget_s=5000.0,
        space={"x": {"grid_search": [1, 2, 3, 4, 5]}, "driver": 0, "folder": str(tmp_path), "pause_s": 0.5},
    )

    def epochs(trial: int) -> list[int]:
        path = tmp_path / f"epochs-{trial}"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    with monkeypatch.context() as patch:
        patch.setattr(Records, "budget_left_s", lambda self: 0.0 if len(epochs(1)) > 2 < len(epochs(2)) else 100.0)
        shown = io.StringIO()
        ended = sweep.run(config, console=SweepConsole(stream=shown))
    said, summary = shown.getvalue(), ended.summary
    assert ended.folder is not None
    folder = RunDirectory.existing(ended.folder)
    assert (ended.exit_code, ended.interrupted, summary["out_of_time"], summary["completed"]) == (0, False, True, 0)
    assert "the sweep ends after 1 h 23 min at the latest" in said
    assert "time_budget_s is used up: stopping after a checkpoint of each running trial" in said
    begun = summary["interrupted"]
    assert 2 <= begun <= 4, "Tune has staged two more"
    left = f"with {begun} trials under way and {5 - begun} not begun"
    assert f"time_budget_s is used up, {left}; for as long again: " in said
    assert folder.resumed_by("sweep") in said
    assert summary["best"]["score"] >= 2
    assert folder.best_toml.is_file()
    assert 2 < len(epochs(1)) < 8

    resumed = sweep.run(folder.read_config(), resume=folder, console=SweepConsole(stream=io.StringIO()))
    assert (resumed.summary["out_of_time"], resumed.summary["completed"]) == (False, 5)
    every = list(range(1, 9))
    assert [epochs(trial) for trial in (1, 2)] == [every] * 2, "no epoch was trained again"
    # Tune may have started a staged one while the others stopped: it ends without a checkpoint.
    assert [epochs(trial)[-8:] for trial in (3, 4, 5)] == [every] * 3
    assert all(len(epochs(trial)) <= 8 + 2 for trial in (3, 4, 5)), "one step more, of two epochs"


@pytest.mark.parametrize(("left_s", "stopping", "is_over"), [(None, False, False), (3.0, False, False),
                                                             (0.0, False, True), (0.0, True, False)])  # fmt: skip
def test_only_the_budget_of_a_sweep_that_does_not_stop_already_ends_it(
    left_s: float | None, stopping: bool, is_over: bool
) -> None:
    records = SimpleNamespace(budget_left_s=lambda: left_s, out_of_time=False)
    live: Any = SimpleNamespace(records=records, stopping=stopping)
    TimeLimits(live).on_step_begin(0, [])
    assert records.out_of_time == is_over


@pytest.mark.parametrize(("out_of_time", "any_scored", "reported", "is_awaited"), [
    (True, True, False, False), (True, True, True, True), (True, False, False, True), (False, True, False, True),
])  # fmt: skip
def test_a_trial_without_a_result_is_not_awaited_once_the_time_is_up(
    out_of_time: bool, any_scored: bool, reported: bool, is_awaited: bool
) -> None:
    records = SimpleNamespace(out_of_time=out_of_time, any_scored=lambda: any_scored)
    live: Any = SimpleNamespace(
        records=records, stopping=True, interrupts=SimpleNamespace(count=0), warn=lambda line: None, is_over=False
    )
    trial = SimpleNamespace(status="RUNNING", has_reported_at_least_once=reported)
    Interruption(live).on_step_begin(0, [trial])
    assert live.is_over is not is_awaited
