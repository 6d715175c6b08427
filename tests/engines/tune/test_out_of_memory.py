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
from raygpu.search.space import trial_seed
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.fused.model_array import TorchArray
from tests.models import Mlp

pytestmark = pytest.mark.timeout(900)


def rows(result: sweep.SweepResult) -> dict[str, dict[str, str]]:
    assert result.folder is not None
    with (result.folder / "trials.csv").open() as file:
        return {row["id"]: row for row in csv.DictReader(file)}


@pytest.fixture
def small_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulated device has 2 GiB."""
    monkeypatch.setattr(Cluster, "device_memory_gib", lambda cluster, device_type: 2.0)


@pytest.mark.usefixtures("small_device")
def test_a_greedy_trial_fails_alone_and_goes_on_with_more_if_there_is_more(sweep_config: Any) -> None:
    config = sweep_config(
        experiment="tests.greedy_cases:greedy",
        trials=None,
        search={"algorithm": "grid"},
        space={"gib": {"grid_search": [0.01, 0.62, 0.02, 4e6]}},
        gpu={"fraction": 0.25},
        checkpoint_s=0.001,
    )
    result = sweep.run(config)
    found = {row["gib"]: row for row in rows(result).values()}
    assert {gib: row["status"] for gib, row in found.items()} == {
        "0.01": "finished", "0.62": "finished", "0.02": "finished", "4000000.0": "failed",
    }  # fmt: skip
    assert result.summary["out_of_memory"] == 3, "once for one, twice for the other: with the whole device too"
    assert result.summary["retries"] == 0, "no worker was lost"
    client = MlflowClient(config.tracking.uri)
    parent = client.get_run(result.summary["tracking"]["run_id"])
    runs = client.search_runs([parent.info.experiment_id], "tags.`raygpu.kind` = 'trial'")
    by_gib = {run.data.params["gib"]: run for run in runs}
    assert by_gib["0.62"].data.tags["raygpu.out_of_memory"] == "1/4"
    assert by_gib["0.62"].data.metrics["went_on_from"] == 1
    assert float(by_gib["0.62"].data.tags["raygpu.gpu_share"]) == pytest.approx(1 / 3)
    assert result.folder is not None
    error = result.folder / "trials" / found["4000000.0"]["id"] / "error.txt"
    assert "MemoryError" in error.read_text(), "no share can hold it"
    for gib in ("0.01", "0.02"):
        assert "raygpu.out_of_memory" not in by_gib[gib].data.tags
        assert by_gib[gib].data.metrics["went_on_from"] == 0
    assert [metric.value for metric in client.get_metric_history(by_gib["0.62"].info.run_id, "score")] == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.usefixtures("small_device")
def test_a_trial_that_fails_twice_goes_on_from_its_checkpoint_both_times(sweep_config: Any) -> None:
    config = sweep_config(
        experiment="tests.greedy_cases:greedy",
        trials=1,
        space={"gib": 0.9},
        gpu={"fraction": 0.25},
        checkpoint_s=0.001,
        tracking={"enabled": False},
    )
    result = sweep.run(config)
    assert (result.summary["completed"], result.summary["out_of_memory"]) == (1, 2)


@pytest.mark.slow
@pytest.mark.usefixtures("small_device")
def test_without_limits_nothing_is_retried(sweep_config: Any) -> None:
    config = sweep_config(
        experiment="tests.greedy_cases:greedy",
        space={"gib": 0.62},
        gpu={"fraction": 0.25, "memory_limit": False},
        tracking={"enabled": False},
    )
    result = sweep.run(config)
    assert (result.summary["completed"], result.summary["out_of_memory"]) == (2, 0)


def test_an_array_that_runs_out_of_memory_goes_on_at_half_its_width(sweep_config: Any, tmp_path: Path) -> None:
    shown = io.StringIO()
    config = sweep_config(
        experiment="tests.memory_cases:Wide",
        trials=6,
        epochs=3,
        metric="accuracy",
        space={"lr": {"loguniform": [0.05, 0.3]}, "hidden": 16},
        gpu={"mode": "fused", "fraction": 1.0, "width": 6},
        tracking={"enabled": False},
    )
    result = sweep.run(config, console=SweepConsole(stream=shown))
    assert "out of memory with 6 trials at once; goes on with 3 from the beginning" in shown.getvalue()
    assert result.summary["completed"] == 6
    found = rows(result)
    trials = [
        Trial(name, trial_seed(config.seed, int(name[1:])), {"lr": float(row["lr"]), "hidden": 16})
        for name, row in sorted(found.items())
    ]
    undisturbed = TorchArray(Mlp(), Mlp().data(), trials, Settings(3, 1, "float32", tmp_path))
    for _ in range(2):
        undisturbed.run_epoch()
    for name, wanted in (undisturbed.run_epoch() or {}).items():
        assert int(found[name]["epochs"]) == wanted.epoch == 3
        assert float(found[name]["score"]) == pytest.approx(wanted.metrics["validation/accuracy"], abs=0.02)
