"""Whole production trainings through `raygpu.train`, on a real Ray Train and a real MLflow store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from mlflow.tracking import MlflowClient

from raygpu import sweep, train
from raygpu.config import TrainConfig, load
from raygpu.config.sections import TrackingSection
from raygpu.errors import BadInput, RaygpuError
from raygpu.records.run_directory import RunDirectory
from raygpu.search.space import trial_seed
from raygpu.search.trials import Trial
from raygpu.workflow.promotion import promoted
from tests.models import few
from tests.tracking.services import predicted_here

pytestmark = pytest.mark.timeout(600)
HP = {"hidden": 8, "lr": 0.1, "momentum": 0.9, "batch_size": 16}
Make = Callable[..., TrainConfig]


def configuration(folder: Path, **values: Any) -> TrainConfig:
    """Of a small training on two workers that writes below `folder`."""
    defaults: dict[str, Any] = {
        "name": "test",
        "experiment": "tests.train_cases:Small",
        "epochs": 4,
        "metric": "accuracy",
        "workers": 2,
        "ratios": "3,2",
        "runs_dir": str(folder / "runs"),
        "tracking": {"uri": f"sqlite:///{folder}/mlflow.db"},
    }
    hp = HP | values.pop("hyperparameters", {})
    return TrainConfig.model_validate(defaults | {"hyperparameters": hp} | values)


@pytest.fixture
def config(joined_ray: None, new_store: Callable[[Path], str], tmp_path: Path) -> Make:
    """Makes configurations of trainings that write below tmp_path."""
    new_store(tmp_path)
    return partial(configuration, tmp_path)


def without_tracking(make: Make, **values: Any) -> TrainConfig:
    return make(**{"tracking": {"enabled": False}, **values})


@pytest.mark.parametrize(
    ("best", "interrupted", "code"),
    [({"score": 0.5}, False, 0), (None, False, 1), (None, True, 130)],
)
def test_the_exit_code_tells_of_a_training_without_a_score(
    monkeypatch: pytest.MonkeyPatch, best: dict[str, float] | None, interrupted: bool, code: int
) -> None:
    monkeypatch.setattr(train, "_run", lambda arguments: train.TrainingResult({"best": best}, None, interrupted))
    assert train.main(["--warm-start"]) == code


def last_checkpoint(result: train.TrainingResult) -> Path:
    return Path(RunDirectory(result.folder).training_checkpoints()[0].uri)


def last(result: train.TrainingResult) -> dict[str, torch.Tensor]:
    """The parameters of the last checkpoint."""
    state = torch.load(last_checkpoint(result) / "checkpoint.pt", weights_only=True)
    return dict(state["model"])


def test_from_a_sweep_to_a_registered_model(config: Make, sweep_config: Any) -> None:
    found = sweep.run(
        sweep_config(
            name="search",
            experiment="tests.train_cases:Small",
            metric="accuracy",
            epochs=1,
            trials=2,
            keep="all",
            gpu={"mode": "process", "fraction": 1.0},  # so one worker trains both
            space={**HP, "lr": {"choice": [1e-4, 2e-4]}},
        )
    )
    assert found.folder is not None
    origin = promoted(str(found.folder), TrackingSection, True)
    by_run(found, sweep_config)
    given = config().model_dump(exclude={"experiment", "hyperparameters", "metric", "seed", "source", "gpu"})
    wanted = TrainConfig.model_validate(origin.values | given | {"registered_name": "digits", "epochs": 4,
                                                                 "lr_scaling": "linear"})  # fmt: skip
    wanted = wanted.model_copy(update={"hyperparameters": {**wanted.hyperparameters, "lr": 0.05}})
    result = train.run(wanted, source_folder=origin.source_folder, warm_start=origin.checkpoint)
    summary = json.loads((result.folder / "summary.json").read_text())
    assert summary == result.summary
    best = found.summary["best"]
    assert summary["source"]["trial_id"] == best["trial_id"]
    assert summary["source"]["mlflow_run_id"] == found.summary["tracking"]["run_id"]
    assert summary["best"]["score"] > best["score"]
    assert (summary["workers"], summary["global_batch"], summary["shares"]) == (2, 32, [19, 13])
    assert summary["model"]["registered"] == "models:/digits/1"

    client = MlflowClient(wanted.tracking.uri)
    run = client.get_run(summary["tracking"]["run_id"])
    assert (run.info.status, run.data.tags["raygpu.kind"]) == ("FINISHED", "train")
    assert run.data.tags["raygpu.sweep"] == "search"
    assert run.data.tags["raygpu.trial_id"] == best["trial_id"]
    assert run.data.params["lr"] == "0.05"
    assert run.data.params["workers"] == "2"
    curves = {"lr", "samples_per_s", "gpu/0/samples_per_s", "scaling_efficiency", "train/loss", "validation/accuracy"}
    assert curves | {"rank/0/share", "rank/1/share", "best/score"} <= set(run.data.metrics)
    assert len(client.get_metric_history(run.info.run_id, "validation/accuracy")) == 4
    version = client.get_model_version("digits", "1")
    assert version.tags["raygpu.sweep"] == "search"
    assert float(version.tags["raygpu.score"]) == summary["best"]["score"]

    inputs = np.asarray(few().validation_inputs[:7])  # type: ignore[index]
    predicted = predicted_here(wanted.tracking.uri, "models:/digits/1", inputs)  # in a fresh process: slow tests below
    from raygpu.training.torch.models import predict
    from tests.train_cases import Small

    _, outputs = predict(Small(), Trial("t0000", 0, wanted.hyperparameters), Path(summary["checkpoint"]), inputs)
    assert np.allclose(predicted, np.stack(outputs), atol=1e-6)


def by_run(found: sweep.SweepResult, sweep_config: Any) -> None:
    """The same from MLflow alone; and another trial than the best."""
    folder = promoted(str(found.folder), TrackingSection, True)
    run_id, uri = found.summary["tracking"]["run_id"], found.summary["tracking"]["uri"]
    store = partial(TrackingSection, uri=uri)
    origin = promoted(run_id, store, True)
    assert origin.values["tracking"].pop("uri") == uri
    folder.values["tracking"].pop("uri")
    assert (origin.name, origin.values) == (folder.name, folder.values)
    assert origin.checkpoint is not None
    assert folder.checkpoint is not None
    kept, own = (path / "checkpoint.pt" for path in (origin.checkpoint, folder.checkpoint))
    assert kept.read_bytes() == own.read_bytes()
    best = found.summary["best"]["trial_id"]
    for run in MlflowClient(uri).search_runs(["1"], f"tags.`mlflow.parentRunId` = '{run_id}'"):
        trial = promoted(run.info.run_id, store, True)
        assert trial.values["source"]["trial_id"] == run.data.tags["raygpu.trial_id"]
        assert trial.values["source"]["score"] == run.data.metrics["validation/accuracy"]
        assert trial.values["hyperparameters"].keys() == folder.values["hyperparameters"].keys()
        assert trial.values["hyperparameters"]["lr"] == float(run.data.params["lr"])
        assert isinstance(trial.values["hyperparameters"]["hidden"], int)
        index = int(run.data.tags["raygpu.trial_id"].lstrip("t"))
        assert trial.values["seed"] == trial_seed(0, index)
        if trial.values["source"]["trial_id"] == best:
            assert trial.values["seed"] == folder.values["seed"]
        else:
            assert trial.checkpoint is None
    with pytest.raises(BadInput, match=r"no run 0{32} in"):
        promoted("0" * 32, store, False)


def elsewhere(uri: str, model: str, inputs: dict[str, np.ndarray], folder: Path) -> np.ndarray:
    """What a registered model predicts in a fresh process, which does not have the experiment."""
    np.savez(folder / "inputs.npz", **inputs)
    code = (
        "import mlflow, numpy, sys\n"
        "sys.modules['pytorch_lightning'] = None\n"  # MLflow would import it, which takes seconds
        f"mlflow.set_tracking_uri({uri!r})\n"
        f"found = mlflow.pyfunc.load_model({model!r}).predict(dict(numpy.load('inputs.npz')))\n"
        "assert not [name for name in sys.modules if name.startswith(('raygpu', 'tests', 'experiments'))]\n"
        "numpy.save('outputs.npy', found)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, check=True, timeout=300)
    return np.asarray(np.load(folder / "outputs.npy"))


@pytest.mark.slow
def test_a_training_that_diverges_ends_and_its_best_model_of_named_inputs_is_registered(
    config: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = train.run(config(experiment="tests.train_cases:NamedDiverges", ratios="auto", registered_name="halves"))
    assert result.summary["epochs"] == 2
    assert result.summary["best"]["epoch"] == 1
    assert "diverged" in capsys.readouterr().out
    assert result.summary["model"]["registered"] == "models:/halves/1", "there is no trial to beat"
    from raygpu.training.torch.models import predict
    from tests.train_cases import Named

    inputs = {name: np.asarray(array[:5]) for name, array in dict(Named().data().validation_inputs).items()}
    predicted = elsewhere(f"sqlite:///{tmp_path}/mlflow.db", "models:/halves/1", inputs, tmp_path)
    _, outputs = predict(Named(), Trial("t0000", 0, HP), Path(result.summary["checkpoint"]), inputs)
    assert np.allclose(predicted, np.stack(outputs), atol=1e-6)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_interrupted_and_resumed_it_comes_to_the_same_end_and_so_does_a_sharded_one(
    config: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(name: str, sharding: str = "none", **hp: Any) -> train.TrainingResult:
        # The score of the first epoch stays the best: a later one need not beat it.
        wanted = {"experiment": "tests.train_cases:Disturbed", "metric": "size", "direction": "min", "name": name}
        source = {"sweep": "search", "trial_id": "t0003", "score": 0.0}
        return train.run(
            config(**wanted, registered_name="worse", source=source, sharding=sharding, hyperparameters=hp)
        )

    def resumed(folder: RunDirectory, **values: Any) -> train.TrainingResult:
        settings = load(folder.config, {}, TrainConfig).model_copy(update=values)
        return train.run(
            settings, source_folder=folder.source_folder, resume=RunDirectory.existing(folder.path, "train")
        )

    undisturbed = run("undisturbed", folder=str(tmp_path), deaths=[])
    assert "does not beat the trial's 0" in undisturbed.summary["model"]["refused"]
    assert "not registered: size" in capsys.readouterr().out
    assert not MlflowClient(undisturbed.summary["tracking"]["uri"]).search_registered_models("name = 'worse'")

    # 7 steps an epoch: killed in the second epoch, and after that one has begun anew in the third; then interrupted.
    stopped = run("stopped", folder=str(tmp_path), deaths=[11, 9], driver=os.getpid())
    assert stopped.interrupted
    assert stopped.summary["retries"] == 2
    assert 2 <= stopped.summary["epochs"] < 4
    out = capsys.readouterr().out
    assert "stopping after a checkpoint" in out
    assert f"go on with: raygpu train --resume {stopped.folder}" in out
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    run_id = stopped.summary["tracking"]["run_id"]
    assert client.get_run(run_id).info.status == "KILLED"

    folder = RunDirectory.existing(stopped.folder, "train")
    text = folder.config.read_text()
    folder.config.write_text(text.replace("hidden = 8", "hidden = 9"))
    with pytest.raises(
        BadInput, match=r"--resume: .*checkpoint_\S+ is no checkpoint of tests.train_cases:Disturbed with these"
    ):
        resumed(folder)
    folder.config.write_text(text)
    whole = resumed(folder)
    assert not whole.interrupted
    assert whole.summary["tracking"]["run_id"] == run_id
    assert client.get_run(run_id).info.status == "FINISHED"
    assert len({m.step for m in client.get_metric_history(run_id, "validation/size")}) == 4
    torch.testing.assert_close(last(whole), last(undisturbed), rtol=0, atol=0)
    assert whole.summary["metrics"] == undisturbed.summary["metrics"]
    assert whole.summary["best"] == undisturbed.summary["best"]
    assert whole.summary["best"]["epoch"] == 1

    again = resumed(folder, source={}, registered_name="growing").summary
    for name in ("epochs", "best", "metrics", "checkpoint"):
        assert again[name] == whole.summary[name]
    assert again["model"]["registered"] == "models:/growing/1"
    assert json.loads((stopped.folder / "summary.json").read_text()) == again
    out = capsys.readouterr().out
    assert f"goes on after epoch {stopped.summary['epochs']}" in out
    assert "has ended already" in out

    (tmp_path / "once").mkdir()
    stopped = run("sharded", "full", folder=str(tmp_path / "once"), deaths=[11], driver=os.getpid())
    assert (stopped.interrupted, stopped.summary["retries"]) == (True, 1)
    assert 1 <= stopped.summary["epochs"] < 4
    sharded = resumed(RunDirectory.existing(stopped.folder, "train"), source={}, registered_name="shards")
    assert (sharded.interrupted, sharded.summary["epochs"]) == (False, 4)
    assert sharded.summary["model"]["registered"] == "models:/shards/1"
    assert sharded.summary["metrics"] == pytest.approx(whole.summary["metrics"], rel=1e-4)
    assert sharded.summary["best"] == pytest.approx(whole.summary["best"], rel=1e-4)
    torch.testing.assert_close(last(sharded), last(undisturbed), rtol=1e-4, atol=1e-6)


def keras_last(result: train.TrainingResult) -> dict[str, np.ndarray]:
    """The parameters of the last checkpoint, and the optimizer's."""
    folder = last_checkpoint(result)
    with h5py.File(folder / "model.weights.h5") as file, np.load(folder / "optimizer.npz") as optimizer:
        found: dict[str, np.ndarray] = dict(optimizer)
        file.visititems(lambda name, item: found.update({name: item[:]}) if isinstance(item, h5py.Dataset) else None)
    return found


@pytest.mark.slow
def test_a_keras_model_of_named_inputs_from_killed_workers_to_the_registry(config: Make, tmp_path: Path) -> None:
    """Two processes, one of which is killed, beside two devices of one process."""

    def run(name: str, deaths: list[int], **values: Any) -> train.TrainingResult:
        hp = {"folder": str(tmp_path), "deaths": deaths}
        return train.run(
            config(experiment="tests.keras_cases:KerasFragile", hyperparameters=hp, name=name, epochs=3, **values)
        )

    two_devices = run("two-devices", [], workers="all", devices_per_worker=2, tracking={"enabled": False})
    killed = run("killed", [10], registered_name="keras-halves")
    assert (two_devices.summary["workers"], killed.summary["workers"]) == (1, 2)
    assert two_devices.summary["shares"] == killed.summary["shares"] == [19, 13]
    assert killed.summary["retries"] == 1
    found, wanted = keras_last(killed), keras_last(two_devices)
    assert found.keys() == wanted.keys()
    for name in found:
        assert np.allclose(found[name], wanted[name], rtol=1e-4, atol=1e-6), name
    assert killed.summary["metrics"] == pytest.approx(two_devices.summary["metrics"], rel=1e-4)

    assert killed.summary["model"]["registered"] == "models:/keras-halves/1"
    from raygpu.training.keras.solo import predict
    from tests.keras_cases import KerasNamed
    from tests.train_cases import Named

    inputs = {name: np.asarray(array[:5]) for name, array in dict(Named().data().validation_inputs).items()}
    predicted = elsewhere(f"sqlite:///{tmp_path}/mlflow.db", "models:/keras-halves/1", inputs, tmp_path)
    _, outputs = predict(KerasNamed(), Trial("t0000", 0, HP), Path(killed.summary["checkpoint"]), inputs)
    assert np.allclose(predicted, np.stack(outputs), atol=1e-6)


@pytest.mark.slow
def test_a_second_ctrl_c_ends_it_at_once(tmp_path: Path) -> None:
    text = SMALL.replace("Small", "Slow").replace("epochs = 2", "epochs = 50")
    (tmp_path / "case.toml").write_text(text.replace("[tracking]", f'folder = "{tmp_path}"\n[tracking]'))
    command = [sys.executable, "-m", "raygpu.train", str(tmp_path / "case.toml"), "--runs-dir", str(tmp_path / "runs")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if "best" in line and not (tmp_path / "stuck").exists():  # there is a checkpoint
            (tmp_path / "stuck").touch()  # it will not come to the next one
            process.send_signal(signal.SIGTERM)
        if "stopping after a checkpoint" in line:
            process.send_signal(signal.SIGTERM)
            break
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130, "".join(seen) + out
    assert "interrupted; go on after the last checkpoint with: python -m raygpu.train --resume" in out


@pytest.mark.slow
def test_a_training_that_raises_is_not_tried_again(config: Make) -> None:
    wanted = without_tracking(config, experiment="tests.train_cases:Raises")
    with pytest.raises(RaygpuError, match="ValueError: this training was meant to fail"):
        train.run(wanted)
    error = (Path(wanted.runs_dir) / "test" / "error.txt").read_text()
    assert error.startswith("Traceback")
    assert "train_cases.py" in error


SMALL = """
experiment = "tests.train_cases:Small"
epochs = 2
metric = "accuracy"
[hyperparameters]
hidden = 8
batch_size = 16
[tracking]
enabled = false
"""


@pytest.mark.parametrize(
    ("text", "flags", "fault"),
    [
        (SMALL, ["--workers", "3", "--ratios", "3,2"], "ratios: read 3,2, 2 numbers for 3 devices"),
        (SMALL, ["--ratios", "3,none"], "--ratios: read '3,none'; allowed: equal, auto, or numbers above 0 by commas"),
        (SMALL, ["--workers", "2", "--global-batch", "1"], "global_batch: read 1; 2 devices need 2 samples at least"),
        (SMALL, ["--metric", "f1"], "metric: read 'f1'; the experiment reports: train/loss"),
        (SMALL, ["--hyperparameters.batch-size", "x"], "--hyperparameters.batch-size: read 'x'; a number"),
        (SMALL, ["--worker", "2"], "--worker: unknown flag (did you mean 'workers'?)"),
        (SMALL.replace("hidden = 8", ""), [], "hyperparameters: tests.train_cases:Small reads 'hidden', which"),
        (SMALL.replace("epochs = 2", ""), [], "epochs: not given"),
        (SMALL.replace("[hyperparameters]", "[space]"), [], "space: is for a search; a training has [hyperparameters]"),
        (SMALL, ["--from", "nowhere"], "--from: nowhere: no such folder; name a sweep's"),
        (SMALL, ["--from", "."], "--from: . is no sweep's folder: it has no config.toml"),
        (SMALL, ["--resume", "nowhere"], "--resume: takes the run's own configuration"),
        (None, ["--resume", "nowhere"], "--resume: nowhere is no training's folder"),
        (SMALL, ["--warm-start"], "--warm-start: takes the parameters of a sweep's best trial, and --from is not"),
    ],
)  # fmt: skip
def test_bad_input(
    text: str | None,
    flags: list[str],
    fault: str,
    tmp_path: Path,
    no_ray: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("raygpu.train.ray_starting", no_ray)
    (tmp_path / "case.toml").write_text(text or "")
    assert train.main([*(["case.toml"] if text else []), *flags]) == 2
    _, err = capsys.readouterr()
    assert err.startswith("raygpu: ")
    assert fault in err, err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "runs").exists()
