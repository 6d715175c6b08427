"""The commands from Python: what a notebook defines, trains, and reads again."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import raygpu
from raygpu.config import PackConfig, SweepConfig, TrainConfig
from raygpu.engines.cluster.ray_environment import ON_LOOPBACK
from raygpu.errors import BadInput
from raygpu.records import trials_csv
from raygpu.records.best_trial import write_best
from raygpu.records.run_directory import RunDirectory
from raygpu.search.space import parse
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import Trial
from raygpu.workflow.by_value import named
from raygpu.workflow.opened_run import SweepRun, TrainRun
from tests.fused_cases import Small
from tests.models import few

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def fields(ray_address: str, new_store: Callable[[Path], str], tmp_path: Path) -> dict[str, Any]:
    return {
        "runs_dir": str(tmp_path / "runs"),
        "profiles": str(tmp_path / "profiles"),
        "tracking": {"uri": new_store(tmp_path)},
        "cluster": {"address": ray_address},
    }


@pytest.mark.slow
def test_from_a_class_of_a_cell_to_a_production_model(fields: dict[str, Any]) -> None:
    class Mine(raygpu.TorchExperiment):
        def data(self) -> raygpu.Splits:
            return few()

        def model(self, hp: Mapping[str, Any]) -> nn.Module:
            return nn.Sequential(nn.Linear(64, hp["hidden"]), nn.ReLU(), nn.Linear(hp["hidden"], 10))

    space = {"lr": raygpu.loguniform(0.01, 0.1), "hidden": raygpu.choice(8, 16)}
    gpu = {"fraction": 1.0, "mode": "process"}  # one worker trains all
    run = raygpu.run_sweep(Mine, space=space, trials=3, epochs=2, metric="accuracy", gpu=gpu, **fields)
    assert run.summary["completed"] == 3
    assert [trial.status for trial in run.trials] == ["finished"] * 3
    assert all(trial.hyperparameters["hidden"] in (8, 16) for trial in run.trials)
    best = run.best
    assert best is not None
    assert best.score == max(trial.score or 0 for trial in run.trials)
    assert best.load_model()(torch.zeros(2, 64)).shape == (2, 10)
    other = next(trial for trial in run.trials if trial.trial_id != best.trial_id)
    with pytest.raises(BadInput, match="its checkpoint was not kept; keep = 'all' keeps every trial's"):
        other.load_model()
    frame = run.to_dataframe()
    assert list(frame["id"]) == ["t0000", "t0001", "t0002"]
    assert "<table" in run._repr_html_()
    assert f"best: {best.trial_id}, accuracy" in repr(run)

    again = raygpu.open_run(run.folder)
    assert isinstance(again, SweepRun)
    assert again.best is not None
    assert again.best.hyperparameters == best.hyperparameters

    own = {name: value for name, value in fields.items() if name == "cluster"}
    training = raygpu.run_training(best, epochs=1, workers=1, hyperparameters={"momentum": 0.5}, **own)
    assert training.hyperparameters == {**best.hyperparameters, "momentum": 0.5}
    assert training.config.seed == raygpu_seed(run, best.trial_id)
    assert training.load_model()(torch.zeros(2, 64)).shape == (2, 10)
    assert training.folder.parent == run.folder.parent
    assert isinstance(raygpu.open_run(training.folder), TrainRun)
    assert training.score is not None


def raygpu_seed(run: SweepRun, trial_id: str) -> int:
    from raygpu.search.space import trial_seed

    return trial_seed(run.config.seed, int(trial_id[1:]))


def test_a_function_of_a_cell_and_a_sweep_that_goes_on(fields: dict[str, Any]) -> None:
    offset = 5.0

    def objective(config: dict[str, Any]) -> dict[str, float]:
        raygpu.checkpoint({"x": config["x"]})
        return {"score": config["x"] + offset}

    space = {"x": raygpu.uniform(0, 1)}
    run = raygpu.run_sweep(objective, space=space, trials=2, metric="score", direction="max", **fields)
    assert run.best is not None
    assert run.best.score is not None
    assert run.best.score > 5
    assert run.best.load_model() == {"x": run.best.hyperparameters["x"]}
    more = raygpu.run_sweep(resume=run, trials=3)
    assert more.folder == run.folder
    assert len(more.trials) == 3
    assert [trial.score for trial in more.trials][:2] == [trial.score for trial in run.trials]
    with pytest.raises(BadInput, match="--resume: takes the run's own configuration"):
        raygpu.run_sweep(resume=run, epochs=3)
    with pytest.raises(BadInput, match="run_sweep: resume goes on with the sweep's own experiment and space"):
        raygpu.run_sweep(objective, resume=run)


@pytest.mark.slow
def test_a_function_of_a_cell_is_trained_for_production(fields: dict[str, Any]) -> None:
    def objective(config: dict[str, Any]) -> None:
        done = raygpu.load(0)
        for epoch in range(done, config["epochs"]):
            raygpu.checkpoint(epoch + 1)
            raygpu.report(score=config["x"] * (epoch + 1) + config["seed"] % 97)

    space = {"x": raygpu.uniform(0, 1)}
    run = raygpu.run_sweep(objective, space=space, trials=2, epochs=3, metric="score", direction="max", **fields)
    assert run.best is not None
    training = raygpu.run_training(run.best, cluster=fields["cluster"], name="production")
    assert training.score == run.best.score
    assert training.load_model() == run.best.load_model() == 3
    assert training.summary["source"]["trial_id"] == run.best.trial_id
    with pytest.raises(BadInput, match="workers: read 2; a function trains on one device"):
        raygpu.run_training(run.best, cluster=fields["cluster"], name="other", workers=2)


@pytest.mark.usefixtures("joined_ray")
def test_a_fault_is_raised_and_not_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also one that is found while Ray starts, which a command prints before it ends Ray."""
    with pytest.raises(BadInput, match=r"space: tests\.fused_cases:Small reads 'hidden'"):
        raygpu.run_sweep("tests.fused_cases:Small", space={"lr": 0.1}, trials=2, epochs=1, runs_dir=str(tmp_path))
    assert capsys.readouterr().err == ""


def test_faults_are_exceptions_with_the_commands_words(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"run_sweep: epoch: unknown key \(did you mean 'epochs'\?\)"):
        raygpu.run_sweep("tests.fused_cases:Small", space={"hidden": 8}, trials=2, epoch=2)
    with pytest.raises(BadInput, match=r"run_sweep: gpu\.fraction: read 'much'"):
        raygpu.run_sweep("tests.fused_cases:Small", space={"hidden": 8}, trials=2, gpu={"fraction": "much"})
    with pytest.raises(BadInput, match=r"cannot travel to workers: .*; move it to a file"):
        raygpu.run_sweep(lambda config, lock=sys.stdout: None, space={}, trials=1, runs_dir=str(tmp_path))
    with pytest.raises(BadInput, match=r"open_run: .* is no run's folder"):
        raygpu.open_run(tmp_path)


def test_what_workers_can_import_has_its_name(tmp_path: Path) -> None:
    assert named(Small, tmp_path) == "tests.fused_cases:Small"
    assert named("train.py:Mine", tmp_path) == "train.py:Mine"
    assert not list(tmp_path.iterdir())


def test_distributions_are_what_a_file_has() -> None:
    space = parse(
        {
            "lr": raygpu.loguniform(1e-3, 1),
            "layers": raygpu.choice(1, 2),
            "width": raygpu.choice(32, 64, when={"layers": 2}),
            "momentum": raygpu.uniform(0, 1),
            "step": raygpu.quniform(0, 1, 0.1),
            "k": raygpu.randint(1, 9),
            "n": raygpu.lograndint(1, 9),
        }
    )
    assert {each.name: (each.kind, each.arguments) for each in space.parameters} == {
        "lr": ("loguniform", (1e-3, 1)),
        "layers": ("choice", (1, 2)),
        "width": ("choice", (32, 64)),
        "momentum": ("uniform", (0, 1)),
        "step": ("quniform", (0, 1, 0.1)),
        "k": ("randint", (1, 9)),
        "n": ("lograndint", (1, 9)),
    }
    assert parse({"a": raygpu.grid_search(1, 2)}, "grid").parameters[0].arguments == (1, 2)


JOINING = """
import sys
import raygpu

def train(config):
    for epoch in range(2):
        raygpu.report(score=config["x"] + epoch)

fields = dict(space={"x": raygpu.uniform(0, 1)}, trials=2, metric="score", tracking={"enabled": False})
done = [
    raygpu.run_sweep(train, name=name, **fields, **({"cluster": {"address": sys.argv[1]}} if name == "joined" else {}))
    for name in ("local", "another", "joined", "again")
]
print("DONE", *(run.summary["completed"] for run in done))
"""


@pytest.mark.slow
def test_a_process_starts_a_ray_for_each_run_joins_a_cluster_and_runs_locally_again(
    ray_address: str, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(JOINING)
    environment = {name: value for name, value in os.environ.items() if name != ON_LOOPBACK}
    words = [sys.executable, "script.py", ray_address]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "DONE 2 2 2 2" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("joined_ray")
def test_measurements_from_python(fields: dict[str, Any]) -> None:
    own = {name: value for name, value in fields.items() if name != "cluster"}
    on_cluster = {name: value for name, value in fields.items() if name != "profiles"}
    small = {"hidden": 8, "lr": 0.1, "batch_size": 16}
    measured = raygpu.run_pack(
        Small, hyperparameters=small, ways="process", numbers="1,2", rounds=1, window_s=0.2, epochs=1, **own
    )
    assert set(measured.to_dataframe()["n"]) == {1, 2}
    assert "image/png;base64" in measured._repr_html_()
    assert str(measured.folder) in repr(measured)
    balanced = raygpu.run_balance(
        Small, hyperparameters=small, workers=2, batches="20,12", turn_s=0.2, rounds=2, window_s=0.1, **on_cluster
    )
    assert balanced.ratios
    assert balanced.configuration.is_file()
    assert isinstance(raygpu.open_run(balanced.folder), type(balanced))


def test_a_section_is_laid_over_the_sweeps_key_by_key(tmp_path: Path) -> None:
    from raygpu.api import _start

    folder = RunDirectory.create(tmp_path, "sweep")
    values = {"experiment": "a:B", "metric": "accuracy", "trials": 1, "epochs": 1, "space": {"lr": 0.1}}
    gpu, tracking = {"precision": "bf16"}, {"uri": f"sqlite:///{tmp_path}/own.db"}
    config = SweepConfig.model_validate({**values, "name": "sweep", "gpu": gpu, "tracking": tracking})
    folder.write_config(config, tmp_path)
    folder.write_run({"kind": "sweep"})
    trial = TrialRecord(Trial("t0000", 0, {"lr": 0.1}), "finished", 0.5, epochs=1)
    trials_csv.write(folder.trials_csv, [trial])
    write_best(folder, config, trial)
    folder.write_summary({"best": {"trial_id": "t0000", "score": 0.5, "epoch": 1}})
    start = _start(
        raygpu.open_run(folder.path), {"gpu": {"devices": "0"}, "tracking": {"experiment": "other"}}, None, TrainConfig
    )
    assert start.values["gpu"] == {"precision": "bf16", "devices": "0"}
    assert start.values["tracking"]["uri"] == tracking["uri"]
    assert start.values["tracking"]["experiment"] == "other"
    assert start.values["direction"] == "max"
    assert "direction" not in _start(raygpu.open_run(folder.path), {"metric": "loss"}, None, TrainConfig).values


def test_a_value_of_a_trials_table_is_given_by_its_dotted_name(tmp_path: Path) -> None:
    from raygpu.api import _start

    folder = RunDirectory.create(tmp_path, "sweep")
    net = {"lr": 0.1, "width": 8}
    values = {"experiment": "a:B", "metric": "accuracy", "trials": 1, "epochs": 1, "space": {"net": {"choice": [net]}}}
    folder.write_config(SweepConfig.model_validate({**values, "name": "sweep"}), tmp_path)
    folder.write_run({"kind": "sweep"})
    trials_csv.write(folder.trials_csv, [TrialRecord(Trial("t0000", 0, {"net": net}), "finished", 0.5, epochs=1)])
    folder.write_summary({"best": {"trial_id": "t0000", "score": 0.5, "epoch": 1}})
    run = raygpu.open_run(folder.path)
    assert isinstance(run, SweepRun)
    start = _start(run.trials[0], {}, {"net.lr": 0.5, "new": 1}, TrainConfig)
    assert start.values["hyperparameters"] == {"net": {"lr": 0.5, "width": 8}, "new": 1}
    assert run.trials[0].hyperparameters == {"net": net}


def test_an_experiment_that_travels_by_value_is_never_there_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run of the same code may read it at this moment."""
    seen, write = list[str](), Path.write_bytes

    def noted(path: Path, content: Any) -> int:
        """Write, and note which file is not whole meanwhile."""
        seen.append(path.name)
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", noted)
    path = Path(named(lambda config: None, tmp_path))
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert path.name not in seen


def test_a_diverged_trial_is_measured_and_not_trained(tmp_path: Path) -> None:
    from raygpu.api import _start

    folder = RunDirectory.create(tmp_path, "sweep")
    values = {"experiment": "a:B", "metric": "accuracy", "trials": 2, "epochs": 1, "space": {"lr": {"uniform": [0, 9]}}}
    folder.write_config(SweepConfig.model_validate({**values, "name": "sweep"}), tmp_path)
    trial = TrialRecord(Trial("t0001", 0, {"lr": 9.0}), "finished", -math.inf, epochs=1, diverged=True)
    trials_csv.write(folder.trials_csv, [trial])
    folder.write_summary({"best": None})
    run = raygpu.open_run(folder.path)
    assert isinstance(run, SweepRun)
    with pytest.raises(BadInput, match="run_training: trial t0001 diverged, and would again; name another trial"):
        raygpu.run_training(run.trials[0])
    assert _start(run.trials[0], {}, None, PackConfig).values["space"] == {"lr": 9.0}
