"""`score = "best"`: a trial is scored by its best epoch, and that epoch's checkpoint is the trial's, in every mode."""

from __future__ import annotations

import csv
import io
import json
import os
import tomllib
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch
from mlflow.tracking import MlflowClient

from raygpu import sweep
from raygpu.cli.sweep_view import SweepConsole
from raygpu.records.run_directory import RunDirectory
from raygpu.records.trial_checkpoints import kept_epoch
from raygpu.reporting import Kept
from raygpu.storage import Storage
from raygpu.sweep import SweepResult
from raygpu.workflow.promotion import promoted
from tests import best_functions

pytestmark = pytest.mark.timeout(600)
LRS = {0.0625: 4, 0.125: 2, 0.028: 6, 0.4: 1}
"""By learning rate: the best of six epochs."""
MODES = {
    "process": ("best_cases:Passing", {"mode": "process", "fraction": 1.0}),
    "fused": ("best_cases:Passing", {"mode": "fused", "fraction": 1.0}),
    "keras": ("keras_cases:KerasPassing", {"mode": "process", "fraction": 1.0}),
    "split": ("keras_cases:KerasPassing", {"mode": "split", "fraction": 1.0, "width": 2}),
    "function": ("best_functions:function", {"mode": "process", "fraction": 1.0}),
}


def run(config: Any) -> tuple[SweepResult, str]:
    shown = io.StringIO()
    return sweep.run(config, console=SweepConsole(stream=shown)), shown.getvalue()


def number(folder: Path) -> float:
    """What a checkpoint holds."""
    if (folder / "checkpoint.pt").is_file():
        return float(torch.load(folder / "checkpoint.pt", weights_only=True)["model"]["number"])
    if (folder / "model.weights.h5").is_file():
        found: list[float] = []
        with h5py.File(folder / "model.weights.h5") as file:
            file.visititems(lambda _, item: found.append(item[0, 0]) if isinstance(item, h5py.Dataset) else None)
        return float(found[0])
    kept = Kept.load(folder)
    assert kept is not None
    return float(__import__("pickle").loads(kept.state))


@pytest.fixture
def config(sweep_config: Any) -> Any:
    def make(mode: str, **values: Any) -> Any:
        name, gpu = MODES[mode]
        space = {"lr": {"grid_search": list(LRS)}, **({"batch_size": 4, "momentum": 0.0} if mode != "function" else {})}
        defaults: dict[str, Any] = {
            "experiment": f"tests.{name}",
            "trials": None,
            "epochs": 6,
            "score": "best",
            "keep": "all",
            "search": {"algorithm": "grid"},
            "space": space,
            "gpu": gpu,
        }
        return sweep_config(**(defaults | values))

    return make


@pytest.mark.parametrize(
    "mode", [mode if mode in ("process", "fused") else pytest.param(mode, marks=pytest.mark.slow) for mode in MODES]
)
def test_a_trial_s_best_epoch_scores_it_and_is_its_checkpoint(config: Any, mode: str) -> None:
    settings = config(mode)
    result, shown = run(settings)
    assert result.folder is not None
    assert (result.summary["score"], result.summary["mode"]) == ("best", MODES[mode][1]["mode"])
    with (result.folder / "trials.csv").open() as file:
        rows = {float(row["lr"]): row for row in csv.DictReader(file)}
    for lr, epoch in LRS.items():
        row = rows[lr]
        assert (int(row["best_epoch"]), int(row["score_epoch"]), int(row["epochs"])) == (epoch, epoch, 6)
        assert float(row["score"]) == pytest.approx(best_functions.score(lr, epoch), abs=1e-5)
        checkpoint = result.folder / "checkpoints" / row["id"]
        assert number(checkpoint) == pytest.approx(best_functions.value(lr, epoch), abs=1e-5)
        noted = json.loads((checkpoint / "score.json").read_text())
        assert (noted["epoch"], noted["score"]) == (epoch, pytest.approx(float(row["score"])))

    best = result.summary["best"]
    assert (best["hyperparameters"]["lr"], best["epoch"], best["epochs"]) == (0.0625, 4, 6)
    assert "score (best epoch)" in shown
    values = tomllib.loads((result.folder / "best.toml").read_text())
    assert (values["source"]["epoch"], values["source"]["score_of"]) == (4, "best epoch")
    assert values["source"]["score"] == best["score"]

    client = MlflowClient(settings.tracking.uri)
    parent = client.get_run(result.summary["tracking"]["run_id"])
    assert parent.data.tags["raygpu.score"] == "best epoch"
    assert (parent.data.metrics["best/score"], parent.data.metrics["best/epoch"]) == (best["score"], 4)
    query = f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
    for child in client.search_runs([parent.info.experiment_id], query):
        lr = float(child.data.params["lr"])
        assert child.data.tags["raygpu.best_epoch"] == str(LRS[lr])
        assert child.data.metrics["best/epoch"] == LRS[lr]
        origin = promoted(child.info.run_id, lambda: settings.tracking, True)
        assert origin.values["source"]["score"] == child.data.metrics["best/score"]
        assert origin.values["source"]["epoch"] == LRS[lr]
    warm = promoted(str(result.folder), lambda: settings.tracking, True).checkpoint
    assert warm is not None
    assert number(warm) == pytest.approx(best_functions.value(0.0625, 4), abs=1e-5)


@pytest.mark.slow
def test_by_default_the_last_epoch_scores_a_trial(config: Any) -> None:
    result, shown = run(config("fused", score="last", keep="best", tracking={"enabled": False}))
    best = result.summary["best"]
    assert (best["hyperparameters"]["lr"], best["epoch"], best["best_epoch"]) == (0.028, 6, 6)
    assert "score (last epoch)" in shown
    assert result.folder is not None
    assert number(result.folder / "checkpoints" / best["trial_id"]) == pytest.approx(best_functions.value(0.028, 6))


def test_it_is_said_where_the_best_epoch_was_not_saved(config: Any) -> None:
    space = {"lr": {"grid_search": [0.0625]}, "every": 3}
    result, shown = run(config("function", space=space, tracking={"enabled": False}))
    assert result.summary["best"]["epoch"] == 4
    assert "the kept checkpoint of t0000 is not of its best epoch 4 but the last one that was saved" in shown
    assert kept_epoch(Storage(str(result.folder / "checkpoints" / "t0000"))) is None


@pytest.mark.slow
def test_a_best_epoch_before_a_lost_worker_and_an_interruption_stays(config: Any, tmp_path: Path) -> None:
    hp = {"batch_size": 4, "momentum": 0.0, "folder": str(tmp_path), "driver": os.getpid()}
    values = {"experiment": "tests.best_cases:Disturbed", "checkpoint_s": 1e-6, "tracking": {"enabled": False}}
    stopped, _ = run(config("fused", space={"lr": {"grid_search": [0.0625, 0.028]}, **hp}, **values))
    assert stopped.summary["retries"] == 1, "a worker was lost"
    assert stopped.interrupted
    assert stopped.folder is not None
    assert (stopped.summary["best"]["trial_id"], stopped.summary["best"]["epoch"]) == ("t0000", 4)
    assert number(stopped.folder / "checkpoints" / "t0000") == pytest.approx(best_functions.value(0.0625, 4), abs=1e-5)
    folder = RunDirectory.existing(stopped.folder)
    settings = folder.read_config().model_copy(update={"keep": "best"})
    resumed = sweep.run(settings, resume=folder, console=SweepConsole(stream=io.StringIO()))
    assert (resumed.summary["completed"], resumed.summary["best"]["epoch"]) == (2, 4)
    assert resumed.summary["best"]["epochs"] == 6
    assert [path.name for path in (stopped.folder / "checkpoints").iterdir()] == ["t0000"], "the best is kept alone"
    assert number(stopped.folder / "checkpoints" / "t0000") == pytest.approx(best_functions.value(0.0625, 4), abs=1e-5)
