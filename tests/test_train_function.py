"""`raygpu.train` of a user's function: on a real Ray Train and MLflow store, and what it refuses."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

import raygpu
from raygpu import sweep, train
from raygpu.config import TrainConfig, load
from raygpu.config.sections import TrackingSection
from raygpu.config.source import Source
from raygpu.errors import BadInput, RaygpuError
from raygpu.planning.gpu_shares import Node
from raygpu.records.run_directory import ENDED, RunDirectory
from raygpu.workflow.opened_run import TrainRun
from raygpu.workflow.promotion import promoted
from raygpu.workflow.training_layout import layout
from raygpu.workflow.user_code import Problem
from tests.function_cases import walk

pytestmark = pytest.mark.timeout(600)
Make = Callable[..., TrainConfig]


def configuration(address: str, folder: Path, function: str, **values: Any) -> TrainConfig:
    """Of a function's training that writes below `folder`."""
    defaults: dict[str, Any] = {
        "name": function,
        "experiment": f"tests.function_cases:{function}",
        "epochs": 6,
        "metric": "score",
        "direction": "max",
        "seed": 11,
        "hyperparameters": {"step": 0.3},
        "runs_dir": str(folder / "runs"),
        "tracking": {"uri": f"sqlite:///{folder}/mlflow.db"},
        "cluster": {"address": address},
    }
    return TrainConfig.model_validate(defaults | values)


@pytest.fixture
def config(ray_address: str, new_store: Callable[[Path], str], tmp_path: Path) -> Make:
    """Makes configurations of a function's trainings that write below tmp_path."""
    new_store(tmp_path)
    return partial(configuration, ray_address, tmp_path)


def resumed(result: train.TrainingResult) -> train.TrainingResult:
    folder = RunDirectory.existing(result.folder, "train")
    return train.run(load(folder.config, {}, TrainConfig), source_folder=folder.source_folder, resume=folder)


def reports(uri: str, run_id: str) -> dict[str, list[tuple[int, float]]]:
    """The steps and values of all metrics that the function reported, as MLflow has them."""
    client = MlflowClient(uri)
    return {name: [(one.step, one.value) for one in client.get_metric_history(run_id, name)]
            for name in client.get_run(run_id).data.metrics if name in ("score", "loss")}  # fmt: skip


@pytest.mark.slow
def test_the_best_trial_trains_to_the_same_reports_undisturbed_and_resumed(
    config: Make, sweep_config: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = {"step": {"uniform": [0.1, 1.0]}, "folder": str(tmp_path)}
    found = sweep.run(sweep_config(name="search", experiment="tests.function_cases:walk", epochs=6, space=space))
    best, uri = found.summary["best"], found.summary["tracking"]["uri"]
    origin = promoted(str(found.folder), TrackingSection, False)
    given = config("walk").model_dump(include={"name", "runs_dir", "tracking", "cluster"})

    def run(name: str, **hp: Any) -> train.TrainingResult:
        wanted = TrainConfig.model_validate(origin.values | given | {"name": name})
        wanted = wanted.model_copy(update={"hyperparameters": {**wanted.hyperparameters, "label": name, **hp}})
        return train.run(wanted, source_folder=origin.source_folder)

    whole = run("whole")
    summary = whole.summary
    assert summary["best"]["score"] >= best["score"]
    client, sweep_id = MlflowClient(uri), found.summary["tracking"]["run_id"]
    query = f"tags.`mlflow.parentRunId` = '{sweep_id}' and tags.`raygpu.trial_id` = '{best['trial_id']}'"
    (trial,) = client.search_runs([client.get_run(sweep_id).info.experiment_id], query)
    expected = reports(uri, trial.info.run_id)
    assert [step for step, _ in expected["score"]] == [1, 2, 3, 4, 5, 6]
    assert reports(uri, summary["tracking"]["run_id"]) == expected, "equal to the last bit"
    (got,) = map(json.loads, (tmp_path / "whole.jsonl").read_text().splitlines())
    trials = list(map(json.loads, (tmp_path / "starts.jsonl").read_text().splitlines()))
    assert {name: value for name, value in got.items() if name != "label"} in trials, "the dict of the sweep's trial"

    for name in ("global_batch", "shares", "samples_per_s", "noise_scale"):
        assert summary[name] is None
    assert summary["workers"] == 1
    logged = client.get_run(summary["tracking"]["run_id"]).data.metrics
    assert not {"lr", "samples_per_s", "rank/0/share"} & set(logged)

    disturbed = {"folder": str(tmp_path), "killed_at": 3, "interrupted_at": 5, "driver": os.getpid(), "every": 2}
    stopped = run("stopped", **disturbed)
    assert stopped.interrupted
    assert (stopped.summary["retries"], stopped.summary["epochs"]) == (1, 5)
    out = capsys.readouterr().out
    assert "a worker was lost; the training goes on after epoch 1" in out
    assert f"go on with: raygpu train --resume {stopped.folder}" in out
    after = resumed(stopped)
    assert not after.interrupted
    assert after.summary["metrics"] == summary["metrics"]
    assert after.summary["best"] == summary["best"]
    assert reports(uri, after.summary["tracking"]["run_id"]) == expected, "each report once"
    assert "goes on after epoch 5" in capsys.readouterr().out
    assert resumed(after).summary["metrics"] == summary["metrics"]
    assert "has ended already" in capsys.readouterr().out
    assert len((tmp_path / "stopped.jsonl").read_text().splitlines()) == 3
    assert TrainRun(RunDirectory.existing(whole.folder, "train")).load_model() == (summary["best"]["epoch"],
                                                                                  summary["best"]["score"])  # fmt: skip


@pytest.mark.slow
def test_a_function_that_ends_by_itself_has_ended(config: Make, capsys: pytest.CaptureFixture[str]) -> None:
    result = train.run(config("patient", checkpoint={"epochs": 5}))
    assert not result.interrupted
    assert (result.summary["epochs"], result.summary["best"]) == (2, {"score": 2.0, "epoch": 2})
    assert "the function ended by itself after 2 of 6 epochs" in capsys.readouterr().out
    assert TrainRun(RunDirectory.existing(result.folder, "train")).load_model() == {"epoch": 2}
    again = resumed(result)
    assert "has ended already" in capsys.readouterr().out
    assert again.summary["best"] == result.summary["best"]


@pytest.mark.slow
def test_a_function_without_a_checkpoint_has_a_score_and_no_model(
    config: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    result = train.run(config("forgetful", tracking={"enabled": False}))
    assert result.summary["best"] == {"score": 3.0, "epoch": 1}
    assert result.summary["checkpoint"] is None
    assert "no state is kept: the function has not called raygpu.checkpoint" in capsys.readouterr().out
    with pytest.raises(BadInput, match="has no checkpoint"):
        TrainRun(RunDirectory.existing(result.folder, "train")).load_model()


@pytest.mark.slow
def test_a_function_that_raises_has_ended_in_mlflow_and_goes_on_once_mended(config: Make, tmp_path: Path) -> None:
    wanted = config("fails_until_mended", hyperparameters={"folder": str(tmp_path)})
    with pytest.raises(RaygpuError, match="ValueError: this function was meant to fail") as caught:
        train.run(wanted)
    assert str(raygpu.__file__) in str(caught.value), "the worker has this raygpu"
    folder = RunDirectory.existing(Path(wanted.runs_dir) / "fails_until_mended", "train")
    client, run_id = MlflowClient(wanted.tracking.uri), folder.read_run()["mlflow_run_id"]
    failed = client.get_run(run_id)
    assert (failed.info.status, failed.data.tags["raygpu.status"]) == ("FAILED", "failed")
    assert failed.data.metrics["score"] == 0.0
    assert not folder.journal.exists()
    error = folder.error.read_text()
    assert error.startswith("Traceback")
    assert "function_cases.py" in error
    assert folder.read_run()[ENDED] == "failed"
    (tmp_path / "mended").touch()
    train.run(load(folder.config, {}, TrainConfig), source_folder=folder.source_folder, resume=folder)
    ended = client.get_run(run_id)
    assert (ended.info.status, ended.data.tags["raygpu.status"]) == ("FINISHED", "finished")
    assert ended.data.metrics["score"] == 5.0
    assert not folder.error.exists()
    assert folder.read_run()[ENDED] is None


CASE = """
experiment = "tests.function_cases:walk"
epochs = 2
metric = "score"
[hyperparameters]
step = 0.3
[tracking]
enabled = false
"""
SCRIPT = """
command = "python train.py --lr {lr} --seed {seed} --note {note}"
epochs = 2
seed = 5
[hyperparameters]
lr = 0.5
note = "two words"
[tracking]
enabled = false
"""
ONE = "a function trains on one device, in one worker"
OWN = "a function makes its own batches"


@pytest.mark.parametrize(
    ("text", "flags", "fault"),
    [
        (CASE, ["--workers", "2"], f"workers: read 2; {ONE}"),
        (CASE, ["--devices-per-worker", "2"], f"devices_per_worker: read 2; {ONE}"),
        (CASE, ["--ratios", "3,2"], f"ratios: read 3,2; {ONE}"),
        (CASE, ["--global-batch", "64"], f"global_batch: read 64; {OWN}"),
        (CASE, ["--accumulate", "2"], f"accumulate: read 2; {OWN}"),
        (CASE, ["--loss-by-share"], f"loss_by_share: read true; {OWN}"),
        (CASE, ["--compile"], "compile: read true; a function compiles its own model"),
        (CASE, ["--lr-scaling", "linear"], "lr_scaling: read linear; a function sets its own learning rate"),
        (CASE, ["--warmup-epochs", "1"], "warmup_epochs: read 1.0; a function sets its own learning rate"),
        (CASE, ["--gpu.precision", "bf16"], "gpu.precision: read bf16; a function sets its own precision; give"),
        (CASE, ["--data.fraction", "0.5"], "data.fraction: read 0.5; a function loads its own data"),
        (CASE, ["--data.synthetic"], "data.synthetic: read true; a function loads its own data"),
        (CASE.replace("enabled = false", ""), ["--register", "x"], "registered_name: read x; a function's model has"),
        (CASE.replace("epochs = 2", ""), [], "epochs: not given; of a function, it is the number of reports after"),
        (CASE.replace(":walk", ":none"), [], "experiment: tests.function_cases has no 'none'"),
        (SCRIPT, [], "run it by: python train.py --lr 0.5 --seed 5 --note 'two words' (raygpu.sweep trains scripts"),
    ],
)  # fmt: skip
def test_refusals(
    text: str,
    flags: list[str],
    fault: str,
    tmp_path: Path,
    no_ray: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("raygpu.train.ray_starting", no_ray)
    (tmp_path / "case.toml").write_text(text)
    assert train.main(["case.toml", *flags]) == 2
    _, err = capsys.readouterr()
    assert err.startswith("raygpu: ")
    assert fault in err, err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("gpus", [1, 4])
def test_a_function_takes_one_whole_gpu(gpus: int) -> None:
    wanted = TrainConfig(experiment="tests.function_cases:walk", epochs=2)
    found = Problem(Source("function", "tests.function_cases:walk", "."), walk, None)
    made = layout(wanted, found, [Node(num_cpus=8, num_gpus=gpus, memory_gib=16.0)], simulated=False)
    assert (made.placing.workers, made.placing.gpus, made.global_batch, made.parallel) == (1, 1.0, None, None)
    lines = made.lines(["A"] * gpus)
    assert ("a function trains on one device; 3 of 4 stay free" in lines) == (gpus == 4)


def test_a_warm_start_is_refused(tmp_path: Path, no_ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raygpu.train.ray_starting", no_ray)
    wanted = configuration("local", tmp_path, "walk", tracking={"enabled": False})
    with pytest.raises(BadInput, match="--warm-start: a function's checkpoint is its own state"):
        train.run(wanted, warm_start=tmp_path)


def test_balance_refuses_functions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from raygpu import balance

    (tmp_path / "case.toml").write_text(CASE)
    assert balance.main([str(tmp_path / "case.toml"), "--runs-dir", str(tmp_path / "runs")]) == 2
    _, err = capsys.readouterr()
    assert "is a function; raygpu.balance takes a TorchExperiment or a KerasExperiment" in err
    assert len(err.splitlines()) == 1
