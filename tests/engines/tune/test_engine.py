"""Whole fused sweeps, on a real Ray and a real MLflow store: what they give is what process mode gives."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from mlflow.tracking import MlflowClient
from ray import cloudpickle

from raygpu import sweep
from raygpu.cli.sweep_view import SweepConsole
from raygpu.config import SweepConfig, validated
from raygpu.engines.tune import engine
from raygpu.engines.tune.trainable import ArrayTrainable
from raygpu.errors import BadInput
from raygpu.records.run_directory import RunDirectory
from raygpu.search.samplers import DrawnTrials
from raygpu.search.space import parse, random_trials, trial_seed
from raygpu.search.trials import Trial
from raygpu.storage import Storage
from raygpu.sweep import SweepResult
from raygpu.training.base import Settings
from raygpu.training.fused.model_array import TorchArray
from raygpu.training.torch.models import CHECKPOINT
from tests.fused_cases import Small

pytestmark = pytest.mark.timeout(900)
POPULATION_SPACE = {
    "lr": {"loguniform": [1e-3, 1.0]},
    "gamma": {"choice": [0.0, 2.0]},
    "warmup_epochs": {"choice": [0, 1]},
}
SPACE = {"lr": {"loguniform": [1e-2, 0.5]}, "momentum": {"uniform": [0.0, 0.9]}, "hidden": 16}


def run(config: SweepConfig) -> tuple[SweepResult, str]:
    """The result, and what a person saw."""
    shown = io.StringIO()
    return sweep.run(config, console=SweepConsole(stream=shown)), shown.getvalue()


def rows(result: SweepResult) -> dict[str, dict[str, str]]:
    assert result.folder is not None
    with (result.folder / "trials.csv").open() as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def outcome(result: SweepResult) -> dict[str, tuple[str, float, int]]:
    return {name: (row["status"], float(row["score"]), int(row["epochs"])) for name, row in rows(result).items()}


@pytest.fixture
def config(sweep_config: Any) -> Any:
    def make(mode: str, **values: Any) -> SweepConfig:
        defaults: dict[str, Any] = {
            "name": mode,
            "experiment": "tests.fused_cases:Small",
            "trials": 6,
            "epochs": 4,
            "metric": "accuracy",
            "space": SPACE,
            "gpu": {"mode": mode, "fraction": 1.0},
            "tracking": {"enabled": False},
        }
        return sweep_config(**(defaults | values))

    return make


def test_fused_and_process_mode_give_the_same_and_every_member_has_its_run_and_the_best_its_model(
    config: Any, tmp_path: Path
) -> None:
    space = {**SPACE, "lr": {"choice": [0.05, 0.2, 1e30]}, "batch_size": {"choice": [16, 32]}}
    settings = config("process", space=space, trials=10, name="look.0")
    alone, _ = run(settings)
    assert "look_0" in (names := actors_of(settings)), "as the dashboard calls a sweep's workers"
    assert "ResourceTrainable" not in names
    settings = config("fused", space=space, trials=10, tracking={"uri": f"sqlite:///{tmp_path}/mlflow.db"})
    fused, shown = run(settings)
    assert fused.summary["mode"] == "fused"
    assert "go on in smaller parts" not in shown, "no array may fail"
    assert "with batch_size=16 hidden=16" in shown
    assert {name: (s, e) for name, (s, _, e) in outcome(fused).items()} == {
        name: (s, e) for name, (s, _, e) in outcome(alone).items()
    }
    assert "diverged" in {status for status, _, _ in outcome(fused).values()}
    for name, (_, score, _) in outcome(fused).items():
        assert score == pytest.approx(outcome(alone)[name][1], abs=0.02)
    assert fused.summary["best"]["trial_id"] == alone.summary["best"]["trial_id"]
    for result in (alone, fused):
        spent = result.summary["workers_s"]
        assert min(spent[what] for what in ("train", "evaluation")) > 0, spent
        assert spent.get("setup", 0.0) + spent.get("imports", 0.0) > 0, "the imports of a worker, at least"
        assert "program" not in spent
        assert list(result.summary["stages_s"])[-4:] == ["trials", "ray_end", "files", "delivery"]
    require_runs(fused, MlflowClient(settings.tracking.uri))
    require_best_model(fused)


def require_runs(result: SweepResult, client: MlflowClient) -> None:
    """Every member has a run, with a point of each epoch of its own."""
    parent = client.get_run(result.summary["tracking"]["run_id"])
    found = client.search_runs([parent.info.experiment_id], f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'")
    assert {run.data.tags["raygpu.trial_id"] for run in found} == set(rows(result))
    for child in found:
        assert child.info.status == "FINISHED"
        assert child.data.tags["raygpu.gpu_index"] == "0"
        history = client.get_metric_history(child.info.run_id, "validation/accuracy")
        _, _, epochs = outcome(result)[child.data.tags["raygpu.trial_id"]]
        assert [metric.step for metric in history] == list(range(1, epochs + 1))
        assert set(child.data.params) == {"lr", "momentum", "hidden", "batch_size"}


def require_best_model(result: SweepResult) -> None:
    """One checkpoint is kept: that of the best trial, with its score."""
    best = result.summary["best"]
    assert result.folder is not None
    kept = list((result.folder / "checkpoints").iterdir())
    assert [path.name for path in kept] == [best["trial_id"]]
    model = Small().model(best["hyperparameters"])
    model.load_state_dict(torch.load(kept[0] / "checkpoint.pt", weights_only=True)["model"])
    splits = Small().data()
    outputs = model.eval()(torch.from_numpy(splits.validation_inputs))
    accuracy = (outputs.argmax(1).numpy() == splits.validation_targets).mean()
    assert accuracy == pytest.approx(best["score"], abs=1e-6)


def actors_of(settings: SweepConfig) -> set[str]:
    """The names of the classes of all actors that the tests' Ray has had."""
    with ray.init(settings.cluster.address, log_to_driver=False):
        return {actor["ActorClassName"] for actor in ray._private.state.actors().values()}


def test_ray_s_dashboard_calls_workers_by_their_first_trial() -> None:
    trainable = ArrayTrainable.__new__(ArrayTrainable)
    trainable.array_config = SimpleNamespace(name="t0001")
    assert repr(trainable) == "t0001 and later"


def test_what_tune_unpickles_for_each_trial_does_not_grow_with_their_number(
    config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []

    def registered(context: Any, trainable: Any, *others: Any, **more: Any) -> None:
        sizes.append(len(cloudpickle.dumps(trainable)))
        raise BadInput("enough is known")

    monkeypatch.setattr("raygpu.engines.tune.engine.fit", registered)
    for number in (3, 300):
        with pytest.raises(BadInput, match="enough is known"):
            run(
                config(
                    "process",
                    experiment="tests.cases:ramp",
                    metric="score",
                    trials=number,
                    name=f"of_{number}",
                    space={"x": {"uniform": [0, 1]}},
                )
            )
    assert sizes[1] < sizes[0] + 1000


@pytest.mark.slow
def test_what_cannot_be_fused_or_raises_is_trained_alone_in_the_same_sweep(config: Any) -> None:
    space = {**SPACE, "kind": {"grid_search": ["mlp", "lstm"]}, "lr": {"grid_search": [0.0, 0.1, 0.2]}, "momentum": 0.9}
    grid = {"trials": None, "search": {"algorithm": "grid"}, "keep": "all"}
    result, shown = run(config("fused", experiment="tests.fused_cases:Picky", space=space, **grid))
    found = rows(result)
    assert {(row["kind"], row["lr"]): row["status"] for row in found.values()} == {
        ("mlp", "0.0"): "failed",
        ("mlp", "0.1"): "finished",
        ("mlp", "0.2"): "finished",
        ("lstm", "0.0"): "finished",
        ("lstm", "0.1"): "finished",
        ("lstm", "0.2"): "finished",
    }
    assert "3 trials are trained alone" in shown
    assert "aten::lstm" in shown
    assert "go on in smaller parts" in shown
    assert result.folder is not None
    finished = {name for name, row in found.items() if row["status"] == "finished"}
    assert {path.name for path in (result.folder / "checkpoints").iterdir()} == finished
    for name in set(found) - finished:
        assert "meant to fail" in (result.folder / "trials" / name / "error.txt").read_text()


@pytest.mark.slow
def test_an_array_whose_members_are_not_as_alone_is_trained_alone(config: Any) -> None:
    values: dict[str, Any] = {
        "experiment": "tests.fused_cases:Later",
        "trials": 4,
        "epochs": 9,
        "stopping": {"algorithm": "halving", "grace_epochs": 3, "reduction": 3},
        "tracking": {"enabled": True},
    }
    fused, shown = run(config("fused", **values))
    alone, _ = run(config("process", **values))
    assert "differ from the same steps of the trial alone" in shown
    assert "its 4 trials are trained alone, from the beginning" in shown
    assert outcome(fused) == outcome(alone)


@pytest.mark.slow
def test_halving_is_that_of_process_mode_and_arrays_share_their_rungs(config: Any) -> None:
    stopping = {"algorithm": "halving", "grace_epochs": 1, "reduction": 3}
    values: dict[str, Any] = {"stopping": stopping, "trials": 27, "epochs": 9}
    alone, _ = run(config("process", **values))
    one, _ = run(config("fused", **values))
    two, _ = run(config("fused", name="two", **values | {"gpu": {"mode": "fused", "fraction": 0.5}}))
    spent = [sum(epochs for _, _, epochs in outcome(result).values()) for result in (alone, one, two)]
    assert spent[1] == pytest.approx(spent[0], rel=0.15)
    assert spent[2] < 27 * 9 / 2, "which array comes first to a rung is chance"
    assert alone.summary["best"]["trial_id"] == one.summary["best"]["trial_id"]
    assert min(result.summary["stopped_early"] for result in (one, two)) > 9


@pytest.mark.slow
def test_optuna_is_told_of_every_member(config: Any) -> None:
    search = {"algorithm": "tpe", "generation": 4}
    result, shown = run(config("fused", trials=10, search=search))
    assert "no array is wider than that" in shown
    assert [status for status, _, _ in outcome(result).values()] == ["finished"] * 10, "a generation waits for scores"


@pytest.mark.slow
def test_a_search_that_learns_has_all_its_workers_with_short_trials(config: Any, tmp_path: Path) -> None:
    """Trials are shorter than the start of a worker."""
    result, _ = run(
        config(
            "process",
            experiment="tests.short_trials:train",
            metric="score",
            space={"x": {"uniform": [0, 1]}, "pids": str(tmp_path)},
            search={"algorithm": "tpe"},
            gpu={"fraction": 0.5},
            trials=60,
            epochs=1,
        )
    )
    assert result.summary["completed"] == 60
    assert len([path for path in tmp_path.iterdir() if path.name.isdecimal()]) == 2


@pytest.mark.slow
def test_an_array_goes_on_after_a_lost_worker_and_after_an_interruption(config: Any, tmp_path: Path) -> None:
    mishaps = {"folder": str(tmp_path / "mishaps"), "driver": os.getpid()}
    (tmp_path / "mishaps").mkdir()
    values: dict[str, Any] = {
        "experiment": "tests.fused_cases:Disturbed",
        "space": {**SPACE, "lr": {"grid_search": [0.1, 0.2]}, "momentum": 0.9, **mishaps},
        "trials": None,
        "epochs": 6,
        "search": {"algorithm": "grid"},
        "checkpoint_s": 0.001,
    }
    stopped, shown = run(config("fused", name="stopped", **values))
    assert stopped.summary["retries"] == 1, "a worker was lost"
    assert stopped.interrupted
    assert stopped.folder is not None
    assert stopped.summary["interrupted"] == 2
    assert "2 interrupted" in shown
    best = stopped.summary["best"]["trial_id"]
    saved = torch.load(stopped.folder / "checkpoints" / best / CHECKPOINT, weights_only=True)
    assert 1 <= saved["epoch"] < 6
    folder = RunDirectory.existing(stopped.folder)
    resumed = sweep.run(folder.read_config(), resume=folder, console=SweepConsole(stream=io.StringIO()))
    found = outcome(resumed)
    trials = [
        Trial(name, trial_seed(0, int(name[1:])), {"lr": float(row["lr"]), "momentum": 0.9, "hidden": 16})
        for name, row in sorted(rows(resumed).items())
    ]
    undisturbed = TorchArray(Small(), Small().data(), trials, Settings(6, 1, "float32", tmp_path))
    *_, ended = iter(undisturbed.run_epoch, None)
    for name, wanted in ended.items():
        assert found[name] == ("finished", pytest.approx(wanted.metrics["validation/accuracy"], abs=0.02), 6)
    best = resumed.summary["best"]["trial_id"]
    saved = torch.load(stopped.folder / "checkpoints" / best / CHECKPOINT, weights_only=True)
    for name, value in undisturbed.member_state(best)["model"].items():
        torch.testing.assert_close(saved["model"][name], value, rtol=1e-3, atol=1e-5)


def test_an_unknown_metric_ends_the_sweep(config: Any, no_ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raygpu.sweep.ray_starting", no_ray)
    with pytest.raises(BadInput, match="the experiment reports"):
        run(config("fused", metric="nothing"))


@pytest.mark.parametrize(("read", "num_populations"), [(frozenset(), 1), (frozenset({"gamma"}), 2)])
def test_a_number_that_the_users_code_reads_stays_a_trials_own(
    read: frozenset[str], num_populations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "start_actor", lambda kind, population: population)
    values = {"experiment": "a:B", "metric": "loss", "trials": 8, "epochs": 6}
    config = validated({**values, "population": {"interval": 2}, "space": POPULATION_SPACE}, SweepConfig, "a.toml")
    context: Any = SimpleNamespace(
        config=config,
        sampler=DrawnTrials(random_trials(parse(POPULATION_SPACE), 8, 0)),
        source=SimpleNamespace(kind="torch"),
        read=read,
        folder=SimpleNamespace(tune=Storage("/nowhere")),
    )
    plan: Any = SimpleNamespace(slots=8)
    settings = engine.population_settings(context, plan, None)
    assert settings is not None
    assert len(set(settings.actor.groups.values())) == num_populations
    assert set(settings.changing) == {"lr", "gamma", "warmup_epochs"} - read
