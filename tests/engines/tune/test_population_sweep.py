"""Whole sweeps with a population, on a real Ray: the mode, a lost worker and an interrupt change nothing."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from raygpu import sweep
from raygpu.cli.sweep_view import SweepConsole
from raygpu.config import SweepConfig, TrainConfig, load, read_toml
from raygpu.records import population_file, trials_csv
from raygpu.records.run_data import RunData
from raygpu.records.run_directory import RunDirectory
from raygpu.search.lineage import lineage, schedule
from raygpu.search.trial_record import Change
from raygpu.sweep import SweepResult

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]
SPACE = {"lr": {"loguniform": [1e-3, 0.5]}, "momentum": {"uniform": [0.0, 0.9]}, "hidden": 16}
POPULATION: dict[str, Any] = {
    "experiment": "tests.fused_cases:Small",
    "trials": 4,
    "epochs": 8,
    "metric": "loss",
    "direction": "min",
    "space": SPACE,
    "population": {"interval": 2},
}
KEPT = ("seed", "hyperparameters", "changes")


def run(config: SweepConfig) -> tuple[SweepResult, str]:
    """The result, and what a person saw."""
    shown = io.StringIO()
    return sweep.run(config, console=SweepConsole(stream=shown)), shown.getvalue()


def changes(result: SweepResult) -> dict[str, list[Change]]:
    assert result.folder is not None
    return population_file.read(result.folder / "population.jsonl")


def scores(result: SweepResult) -> dict[str, float | None]:
    assert result.folder is not None
    return {row.trial_id: row.score for row in trials_csv.read(result.folder / "trials.csv")}


@pytest.fixture
def config(sweep_config: Any) -> Any:
    def make(mode: str, fraction: float = 1.0, **values: Any) -> SweepConfig:
        own = {"name": mode, "gpu": {"mode": mode, "fraction": fraction}, "tracking": {"enabled": False}}
        return sweep_config(**(POPULATION | own | values))

    return make


@pytest.fixture(scope="module")
def whole(
    ray_address: str, new_store: Callable[[Path], str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[SweepResult, str, str]:
    """The fused sweep that nothing disturbs, what a person saw, and its store."""
    folder = tmp_path_factory.mktemp("whole")
    uri = new_store(folder)
    own = {"name": "whole", "gpu": {"mode": "fused", "fraction": 1.0}, "tracking": {"uri": uri}}
    places = {"runs_dir": str(folder / "runs"), "profiles": str(folder / "profiles")}
    cluster = {"cluster": {"address": ray_address}}
    return *run(SweepConfig.model_validate(POPULATION | own | places | cluster)), uri


def test_fused_and_process_mode_give_the_same(config: Any, whole: tuple[SweepResult, str, str]) -> None:
    alone, _ = run(config("process", 0.25))
    fused, shown, uri = whole
    assert "the worst 25% take over" in shown
    found = changes(fused)
    assert changes(alone) == found
    assert sum(map(len, found.values())) == fused.summary["taken_over"] == 3, "of four trials, one at each interval"
    for name, score in scores(fused).items():
        assert score == pytest.approx(scores(alone)[name], rel=1e-3)
    assert fused.folder is not None
    assert alone.folder is not None
    best, other = read_toml(fused.folder / "best.toml"), read_toml(alone.folder / "best.toml")
    assert {name: best.get(name) for name in KEPT} == {name: other.get(name) for name in KEPT}
    _metrics_follow_the_changes(fused, found, uri)
    data = RunData.load(RunDirectory.existing(fused.folder))
    begun = {row.trial_id: row.hyperparameters for row in data.trials}
    names = {name: {key: begun[name][key] for key in ("lr", "momentum")} for name in begun}
    stretches = lineage(fused.summary["best"]["trial_id"], 8, found, names)
    assert load(fused.folder / "best.toml", {}, TrainConfig).changes == schedule(stretches)


def _metrics_follow_the_changes(result: SweepResult, found: dict[str, list[Change]], uri: str) -> None:
    client = MlflowClient(uri)
    runs = client.search_runs([client.get_experiment_by_name("raygpu").experiment_id])
    by_trial = {each.data.tags.get("raygpu.trial_id"): each for each in runs}
    name, (change, *_) = next((name, each) for name, each in found.items() if each)
    history = {m.step: m.value for m in client.get_metric_history(by_trial[name].info.run_id, "lr")}
    assert history[change.epoch] == pytest.approx(float(by_trial[name].data.params["lr"]))
    assert history[change.epoch + 1] == pytest.approx(change.values["lr"])
    assert by_trial[name].data.tags["raygpu.taken_over"].startswith(f"{change.donor} after epoch {change.epoch}")


@pytest.mark.parametrize(("mode", "fraction"), [("fused", 1.0), ("process", 0.25)])
def test_a_lost_worker_and_an_interrupt_change_nothing(
    mode: str, fraction: float, config: Any, whole: tuple[SweepResult, str, str], tmp_path: Path
) -> None:
    mishaps = {"folder": str(tmp_path / "mishaps"), "driver": os.getpid()}
    (tmp_path / "mishaps").mkdir()
    values: dict[str, Any] = {
        "experiment": "tests.fused_cases:Disturbed",
        "space": {**SPACE, **mishaps},
        "checkpoint_s": 0.001,
    }
    stopped, _ = run(config(mode, fraction, name="stopped", **values))
    assert stopped.summary["retries"] >= 1, "a worker was lost"
    assert stopped.interrupted
    assert stopped.folder is not None
    folder = RunDirectory.existing(stopped.folder)
    resumed = sweep.run(folder.read_config(), resume=folder, console=SweepConsole(stream=io.StringIO()))
    undisturbed, _, _ = whole
    assert changes(resumed) == changes(undisturbed)
    assert resumed.summary["taken_over"] == 3
    for name, score in scores(resumed).items():
        assert score == pytest.approx(scores(undisturbed)[name], rel=1e-3)


def test_more_trials_than_places_take_from_those_before_them(config: Any) -> None:
    result, _ = run(config("process", 0.5, trials=6))
    assert result.summary["completed"] == 6
    taken = [change for each in changes(result).values() for change in each]
    assert taken
    assert not (result.folder / "tune" / "population").exists()  # type: ignore[operator]
