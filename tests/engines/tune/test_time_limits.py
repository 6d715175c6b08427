"""Trials that hang or take too long, and what a resumed sweep makes of those that failed."""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from raygpu import sweep
from raygpu.engines.tune import time_limits
from raygpu.engines.tune.time_limits import TimeLimits
from raygpu.records.run_directory import RunDirectory
from raygpu.search.space import parse, random_trials

pytestmark = pytest.mark.timeout(300)


def rows(folder: Path) -> dict[str, dict[str, str]]:
    with (folder / "trials.csv").open() as file:
        return {row["id"]: row for row in csv.DictReader(file)}


@pytest.fixture
def config(sweep_config: Any, tmp_path: Path) -> Any:
    space = {"kind": {"grid_search": ["good", "hangs", "slow"]}, "x": 1, "folder": str(tmp_path)}
    return sweep_config(
        experiment="tests.cases:hangs_once",
        trials=None,
        search={"algorithm": "grid"},
        space=space,
        gpu={"fraction": 0.5},
        trial_timeout_s=9.0,
        silence_timeout_s=4.0,
    )


def test_a_trial_that_hangs_and_one_that_never_ends_fail_and_may_be_tried_again(config: Any, tmp_path: Path) -> None:
    first = sweep.run(config)
    assert first.exit_code == 0
    assert first.folder is not None
    assert {row["kind"]: row["status"] for row in rows(first.folder).values()} == {
        "good": "finished",
        "hangs": "failed",
        "slow": "failed",
    }
    assert sorted(first.failures) == ["no epoch within silence_timeout_s = 4", "took longer than trial_timeout_s = 9"]
    assert first.summary["retries"] == 0, "they are not tried again as lost workers are"

    folder = RunDirectory.existing(first.folder)
    again = sweep.run(folder.read_config(), resume=folder)
    assert again.summary["failed"] == 2, "an ended sweep trains nothing again by itself"

    (tmp_path / "mended").touch()
    mended = sweep.run(folder.read_config(), resume=folder, retry_failed=True)
    assert (mended.summary["completed"], mended.summary["failed"]) == (3, 0)
    client = MlflowClient(config.tracking.uri)
    parent = client.get_run(mended.summary["tracking"]["run_id"])
    trials = client.search_runs([parent.info.experiment_id], "tags.`raygpu.trial_id` LIKE 't%'")
    assert sorted((run.data.tags["raygpu.trial_id"], run.info.status) for run in trials) == [
        ("t0000", "FINISHED"),
        ("t0001", "FINISHED"),
        ("t0002", "FINISHED"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "failed"), [("silence_timeout_s", 1), ("trial_timeout_s", 4)])
def test_of_an_array_that_hangs_only_the_trial_at_fault_fails_unless_time_is_up_for_all(
    sweep_config: Any, limit: str, failed: int
) -> None:
    config = sweep_config(
        experiment="tests.fused_cases:Hanging",
        metric="accuracy",
        trials=None,
        epochs=10,
        search={"algorithm": "grid"},
        space={"lr": {"grid_search": [0.5, 0.4, 1e-9, 0.3]}, "hidden": 16},
        gpu={"fraction": 1, "mode": "fused"},
        **{limit: 25.0},
    )
    result = sweep.run(config)
    assert result.folder is not None
    statuses = {row["lr"]: row["status"] for row in rows(result.folder).values()}
    assert sum(status == "failed" for status in statuses.values()) == failed
    assert statuses["1e-09"] == "failed"
    assert f"{limit} = 25" in result.failures[0]


@pytest.mark.parametrize("still_s", [0.0, 100.0])
def test_the_time_in_which_tune_itself_was_held_up_counts_for_no_trial(
    monkeypatch: pytest.MonkeyPatch, still_s: float
) -> None:
    now = [0.0]
    monkeypatch.setattr(time_limits, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(time_limits._Clock, "__init__", _clock(now))
    killed: list[Any] = []
    monkeypatch.setattr(time_limits, "kill_worker", killed.append)
    limits = SimpleNamespace(trial_timeout_s=60.0, silence_timeout_s=20.0)
    no_budget = SimpleNamespace(budget_left_s=lambda: None)
    live: Any = SimpleNamespace(config=limits, overdue={}, stopping=False, records=no_budget)
    callback, trial = TimeLimits(live), SimpleNamespace(trial_id="a", status="RUNNING", max_failures=3)
    callback.on_step_begin(0, [])
    callback.on_trial_start(0, [], trial)
    now[0] += still_s
    callback.on_step_begin(0, [])
    for _ in range(19):
        now[0] += 1
        callback.on_step_begin(0, [])
    assert not killed
    for _ in range(3):
        now[0] += 1
        callback.on_step_begin(0, [])
    assert killed == [trial]
    assert trial.max_failures == 0
    assert not live.overdue["a"].ends_members


def _clock(now: list[float]) -> Any:
    def made(self: Any, trial: Any) -> None:
        self.trial, self.started, self.heard = trial, now[0], now[0]

    return made


@pytest.mark.slow
def test_a_sweep_goes_on_to_more_trials(sweep_config: Any) -> None:
    values: dict[str, Any] = {
        "experiment": "tests.cases:quadratic",
        "space": {"x": {"uniform": [-1, 1]}},
    }
    first = sweep.run(sweep_config(**values, trials=2))
    assert first.folder is not None
    folder = RunDirectory.existing(first.folder)
    more = sweep.run(folder.read_config({"trials": "5"}), resume=folder)
    assert more.summary["completed"] == 5
    drawn = random_trials(parse(values["space"]), 5, seed=0)
    assert {name: float(row["x"]) for name, row in rows(first.folder).items()} == {
        trial.trial_id: trial.hyperparameters["x"] for trial in drawn
    }, "the same trials as those of a sweep of five from the start"
    assert folder.read_config().trials == 5


def test_what_a_resumed_sweep_does_not_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["--retry", "failed"], "--retry: goes with --resume"),
        (["--resume", str(tmp_path), "--retry", "all"], "--retry: read 'all'; allowed: failed"),
        (["--resume", str(tmp_path), "--epochs", "3"], "no flag but --trials, --repeats, --retry, --trial-timeout-s"),
    ):
        assert sweep.main(words) == 2
        assert said in capsys.readouterr().err
