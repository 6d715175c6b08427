"""Trials that run out of memory do so alone, and go on with more of it."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from raygpu import sweep
from raygpu.cli.sweep_view import SweepConsole
from raygpu.engines.cluster.cluster import Cluster

pytestmark = pytest.mark.timeout(900)


def rows(result: sweep.Result) -> dict[str, dict[str, str]]:
    assert result.folder is not None
    with (result.folder / "trials.csv").open() as file:
        return {row["id"]: row for row in csv.DictReader(file)}


@pytest.fixture
def small_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulated device has 2 GiB."""
    monkeypatch.setattr(Cluster, "device_memory_gib", lambda cluster, device_type: 2.0)


@pytest.mark.usefixtures("small_device")
def test_a_greedy_trial_fails_alone_and_goes_on_with_more(sweep_config: Any) -> None:
    config = sweep_config(
        experiment="tests.memory_cases:greedy",
        trials=None,
        search={"algorithm": "grid"},
        space={"gib": {"grid_search": [0.01, 0.62, 0.02, 0.03]}},
        gpu={"fraction": 0.25},
        checkpoint_s=0.001,
    )
    result = sweep.run(config)
    found = {row["gib"]: row for row in rows(result).values()}
    assert {row["status"] for row in found.values()} == {"finished"}
    assert result.summary["out_of_memory"] == 1
    assert result.summary["retries"] == 0, "no worker was lost"
    client = MlflowClient(config.tracking.uri)
    parent = client.get_run(result.summary["tracking"]["run_id"])
    runs = client.search_runs([parent.info.experiment_id], "tags.`raygpu.kind` = 'trial'")
    by_gib = {run.data.params["gib"]: run for run in runs}
    assert by_gib["0.62"].data.tags["raygpu.out_of_memory"] == "1/4"
    assert by_gib["0.62"].data.metrics["went_on_from"] == 1
    assert float(by_gib["0.62"].data.tags["raygpu.gpu_share"]) == pytest.approx(1 / 3)
    for gib in ("0.01", "0.02", "0.03"):
        assert "raygpu.out_of_memory" not in by_gib[gib].data.tags
        assert by_gib[gib].data.metrics["went_on_from"] == 0
    assert [metric.value for metric in client.get_metric_history(by_gib["0.62"].info.run_id, "score")] == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.usefixtures("small_device")
def test_a_trial_that_fails_twice_goes_on_from_its_checkpoint_both_times(sweep_config: Any) -> None:
    config = sweep_config(
        experiment="tests.memory_cases:greedy",
        trials=1,
        space={"gib": 0.9},
        gpu={"fraction": 0.25},
        checkpoint_s=0.001,
        tracking={"enabled": False},
    )
    result = sweep.run(config)
    assert (result.summary["completed"], result.summary["out_of_memory"]) == (1, 2)


@pytest.mark.usefixtures("small_device")
def test_without_limits_nothing_is_retried(sweep_config: Any) -> None:
    config = sweep_config(
        experiment="tests.memory_cases:greedy",
        space={"gib": 0.62},
        gpu={"fraction": 0.25, "memory_limit": False},
        tracking={"enabled": False},
    )
    result = sweep.run(config)
    assert (result.summary["completed"], result.summary["out_of_memory"]) == (2, 0)


@pytest.mark.usefixtures("small_device")
def test_what_no_share_can_hold_fails_with_its_traceback(sweep_config: Any) -> None:
    config = sweep_config(
        experiment="tests.memory_cases:greedy",
        trials=1,
        space={"gib": 4e6},
        gpu={"fraction": 0.5},
        tracking={"enabled": False},
    )
    result = sweep.run(config)
    assert (result.summary["failed"], result.summary["out_of_memory"]) == (1, 1)
    assert result.folder is not None
    assert "MemoryError" in (result.folder / "trials" / "t0000" / "error.txt").read_text()


def test_an_array_that_runs_out_of_memory_goes_on_at_half_its_width(sweep_config: Any, tmp_path: Path) -> None:
    def run(name: str, experiment: str) -> tuple[sweep.Result, str]:
        shown = io.StringIO()
        config = sweep_config(
            name=name,
            experiment=experiment,
            trials=6,
            epochs=3,
            metric="accuracy",
            space={"lr": {"loguniform": [0.05, 0.3]}, "hidden": 16},
            gpu={"mode": "fused", "fraction": 1.0, "width": 6},
            tracking={"enabled": False},
        )
        return sweep.run(config, console=SweepConsole(stream=shown)), shown.getvalue()

    undisturbed, _ = run("undisturbed", "tests.models:Mlp")
    halved, shown = run("halved", "tests.memory_cases:Wide")
    assert "out of memory at width 6; goes on at 3 from the beginning" in shown
    assert halved.summary["completed"] == 6
    before, after = rows(undisturbed), rows(halved)
    assert {name: row["epochs"] for name, row in after.items()} == {name: row["epochs"] for name, row in before.items()}
    for name, row in after.items():
        assert float(row["score"]) == pytest.approx(float(before[name]["score"]), abs=0.02)
