"""Whole sweeps through `raygpu.sweep.run`, on a real Ray and a real MLflow store."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
import tomllib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from raygpu import sweep
from raygpu.cli.sweep_view import SweepConsole
from raygpu.config.sections import TrackingSection
from raygpu.errors import BadInput
from raygpu.records import activity
from raygpu.records.run_directory import RunDirectory
from raygpu.sweep import SweepResult
from raygpu.tracking.session import SweepSession
from raygpu.workflow.promotion import promoted
from tests.fakes.nvml import FakeNvml

pytestmark = pytest.mark.timeout(900)


def rows(result: SweepResult) -> dict[str, dict[str, str]]:
    with (result.folder / "trials.csv").open() as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def runs(config: Any, result: SweepResult) -> tuple[Any, dict[str, Any]]:
    """The parent run, and the children by trial."""
    client = MlflowClient(config.tracking.uri)
    parent = client.get_run(result.summary["tracking"]["run_id"])
    children = client.search_runs(
        [parent.info.experiment_id], f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'", max_results=1000
    )
    return parent, {run.data.tags["raygpu.trial_id"]: run for run in children}


def test_every_way_a_trial_can_end(sweep_config: Any) -> None:
    kinds = ["good", "raises", "exits", "silent", "diverges", "sparse"]
    config = sweep_config(
        experiment="tests.cases:behave",
        trials=None,
        search={"algorithm": "grid"},
        space={"kind": {"grid_search": kinds}},
        gpu={"fraction": 0.5},
    )
    result = sweep.run(config)
    assert result.exit_code == 0
    status = {row["kind"]: row["status"] for row in rows(result).values()}
    assert status == {
        "good": "finished",
        "raises": "failed",
        "exits": "failed",
        "silent": "failed",
        "diverges": "diverged",
        "sparse": "finished",
    }
    summary = json.loads((result.folder / "summary.json").read_text())
    assert summary == result.summary
    assert (summary["completed"], summary["diverged"], summary["failed"], summary["stopped_early"]) == (2, 1, 3, 0)
    best = {"trial_id": "t0000", "score": 0.3, "epoch": 3, "best_epoch": 3, "epochs": 3, "ended": None}
    assert summary["best"] == {**best, "hyperparameters": {"kind": "good"}}
    assert summary["plan"]["trials_per_gpu"] == 2
    assert summary["gpus"][0]["uuid"] is None
    assert [record.trial.trial_id for record in result.best] == ["t0000", "t0005", "t0004"], "diverged comes last"
    assert "meant to fail" in (result.folder / "trials/t0001/error.txt").read_text()
    assert "SystemExit: 3" in (result.folder / "trials/t0002/error.txt").read_text()
    assert "without a metric" in (result.folder / "trials/t0003/error.txt").read_text()
    assert len(result.failures) == 3
    assert "SystemExit: 3" in result.failures
    best = tomllib.loads((result.folder / "best.toml").read_text())
    assert best["hyperparameters"] == {"kind": "good"}

    parent, children = runs(config, result)
    assert parent.data.tags["raygpu.kind"] == "sweep"
    assert parent.info.status == "FINISHED"
    assert {t: run.info.status for t, run in children.items()} == {
        "t0000": "FINISHED",
        "t0001": "FAILED",
        "t0002": "FAILED",
        "t0003": "FAILED",
        "t0004": "FINISHED",
        "t0005": "FINISHED",
    }
    good = children["t0000"]
    assert good.data.params == {"kind": "good"}
    assert good.data.tags["raygpu.gpu_index"] == "0"
    assert good.data.tags["raygpu.gpu_share"] == "0.5"
    client = MlflowClient(config.tracking.uri)
    assert [(m.step, m.value) for m in client.get_metric_history(good.info.run_id, "score")] == [
        (1, 0.1),
        (2, 0.2),
        (3, 0.3),
    ]
    assert children["t0004"].data.tags["raygpu.diverged"] == "true"
    assert parent.data.metrics["trials/diverged"] == 1
    assert {item.path for item in client.list_artifacts(parent.info.run_id)} >= {"config.toml", "summary.json"}


def run_told(config: Any, **options: Any) -> tuple[SweepResult, str]:
    """The result, and what a person saw."""
    shown = io.StringIO()
    return sweep.run(config, console=SweepConsole(stream=shown), **options), shown.getvalue()


@pytest.mark.slow
def test_a_sweep_where_every_trial_diverges_has_no_best_one(sweep_config: Any) -> None:
    config = sweep_config(experiment="tests.cases:behave", space={"kind": "diverges"}, score="best", keep="all")
    result, shown = run_told(config)
    assert result.exit_code == 1
    summary = json.loads((result.folder / "summary.json").read_text())
    assert (summary["completed"], summary["diverged"], summary["best"]) == (0, 2, None)
    assert "no trial has a finite score (2 diverged), so there is no best trial" in shown
    assert "0 finished, 2 diverged, 0 stopped early, 0 failed" in shown
    assert not (result.folder / "best.toml").exists()
    assert {row["status"] for row in rows(result).values()} == {"diverged"}
    parent, children = runs(config, result)
    assert parent.info.status == "FAILED"
    assert "best/score" not in parent.data.metrics
    for child in children.values():
        assert (child.data.tags["raygpu.status"], child.data.tags["raygpu.diverged"]) == ("diverged", "true")
    with pytest.raises(BadInput, match=r"has no best.toml: .* with a score \(2 diverged\)"):
        promoted(str(result.folder), TrackingSection, False)
    run_id = children["t0000"].info.run_id
    with pytest.raises(BadInput, match=r"trial t0000 diverged, and would again"):
        promoted(run_id, lambda: config.tracking, False)
    folder = RunDirectory.existing(result.folder)
    (result.folder / "best.toml").touch()  # of an interrupted start, whose best trial has diverged since
    assert sweep.run(folder.read_config(), resume=folder).exit_code == 1
    assert not (result.folder / "best.toml").exists()


@pytest.mark.slow
def test_what_a_locked_store_does_not_take_is_told_and_delivered_by_a_resume(
    sweep_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = f"sqlite:///{tmp_path}/mlflow.db"
    config = sweep_config(experiment="tests.cases:ramp", epochs=3, tracking={"uri": store, "patience_s": 0.5})
    end = SweepSession.close

    def locked(session: SweepSession, *arguments: Any, **named: Any) -> list[str]:
        with closing(sqlite3.connect(tmp_path / "mlflow.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            said = end(session, *arguments, **named)
            other.execute("ROLLBACK")
            return said

    with monkeypatch.context() as patched:
        patched.setattr(SweepSession, "close", locked)
        patched.setattr("raygpu.tracking.writer.Writer.finish", lambda writer: None)
        patched.setattr("raygpu.tracking.writer.Writer._drain", lambda *arguments, **named: None)
        result, shown = run_told(config)
    assert result.exit_code == 3
    assert result.summary["best"]["trial_id"] == "t0000", "the results here are complete"
    summary = json.loads((result.folder / "summary.json").read_text())
    assert summary["tracking"]["undelivered"] > 0
    assert runs(config, result)[0].data.tags.get("raygpu.undelivered") is None, "the store was locked then, too"
    assert f"deliver by: raygpu deliver {result.folder}" in shown
    assert f"they lie in {result.folder / 'undelivered.jsonl'}" in shown
    folder = RunDirectory.existing(result.folder)
    resumed, shown = run_told(folder.read_config(), resume=folder)
    assert "writes that an earlier start had left were delivered" in shown
    assert resumed.exit_code == 0
    assert (resumed.summary["tracking"]["undelivered"], resumed.summary["tracking"]["fault"]) == (0, None)
    parent, children = runs(config, resumed)
    assert {run.info.status for run in [parent, *children.values()]} == {"FINISHED"}
    assert parent.data.tags["raygpu.undelivered"] == "0"
    client = MlflowClient(store)
    for child in children.values():
        assert [m.step for m in client.get_metric_history(child.info.run_id, "score")] == [1, 2, 3]


@pytest.mark.slow
def test_torch_leaves_a_best_model_that_loads_and_scores_the_same(sweep_config: Any) -> None:
    import torch

    from experiments.digits import Mlp

    config = sweep_config(
        experiment="experiments.digits:Mlp",
        trials=3,
        epochs=4,
        metric="accuracy",
        space={"lr": {"loguniform": [1e-2, 1.0]}, "hidden": {"choice": [16, 32]}, "momentum": 0.9},
        data={"fraction": 0.5},
    )
    result = sweep.run(config)
    best = result.summary["best"]
    folder = result.folder
    checkpoints = list((folder / "checkpoints").iterdir())
    assert [path.name for path in checkpoints] == [best["trial_id"]], "keep = best"
    state = torch.load(checkpoints[0] / "checkpoint.pt", weights_only=True)
    assert state["optimizer"]["num_steps"] > 0
    model = Mlp().model(best["hyperparameters"])
    model.load_state_dict(state["model"])
    splits = Mlp().data()
    hits = model(torch.from_numpy(splits.validation_inputs)).argmax(1).numpy() == splits.validation_targets
    assert hits.mean() == pytest.approx(best["score"], abs=1e-6)
    assert "Linear(in_features=64" in (folder / "best/architecture.txt").read_text()
    with (folder / "best/predictions.csv").open() as file:
        predictions = list(csv.DictReader(file))
    assert len(predictions) == 8
    assert int(predictions[0]["target"]) == splits.validation_targets[0]
    parent, children = runs(config, result)
    assert "raygpu.data" not in parent.data.tags
    assert set(children["t0000"].data.metrics) == {
        "train/loss",
        "validation/loss",
        "validation/accuracy",
        "samples_per_s",
    }
    assert result.summary["gpus"][0]["samples_per_s"] > 0
    assert result.summary["data"] == "real"
    assert not any("raygpu.data" in run.data.tags for run in children.values())


def test_halving_stops_losers_at_its_rungs(sweep_config: Any) -> None:
    config = sweep_config(
        experiment="tests.cases:ramp",
        trials=9,
        epochs=9,
        space={"x": {"uniform": [0.0, 1.0]}},
        stopping={"algorithm": "halving", "grace_epochs": 1, "reduction": 3},
    )
    result = sweep.run(config)
    stopped = {id_: row for id_, row in rows(result).items() if row["status"] == "stopped"}
    assert result.summary["stopped_early"] == len(stopped) > 0
    assert {int(row["epochs"]) for row in stopped.values()} <= {1, 3}
    _, children = runs(config, result)
    for id_, row in stopped.items():
        assert children[id_].info.status == "KILLED"
        assert children[id_].data.tags["raygpu.stopped"] == f"halving at epoch {row['epochs']}"
    assert result.summary["best"]["epoch"] == 9


@pytest.mark.slow
def test_median_stops_what_stays_below_the_others(sweep_config: Any) -> None:
    config = sweep_config(
        experiment="tests.cases:ramp",
        trials=None,
        epochs=6,
        search={"algorithm": "grid"},
        space={"x": {"grid_search": [1.0, 0.9, 0.2, 0.1, 0.05]}},
        stopping={"algorithm": "median", "grace_epochs": 2, "min_trials": 2},
    )
    result = sweep.run(config)
    found = rows(result)
    assert (found["t0000"]["status"], found["t0001"]["status"]) == ("finished", "finished")
    stopped = {id_: row for id_, row in found.items() if row["status"] == "stopped"}
    assert stopped
    assert {int(row["epochs"]) for row in stopped.values()} <= {2, 3, 4, 5}
    _, children = runs(config, result)
    for id_, row in stopped.items():
        assert children[id_].data.tags["raygpu.stopped"] == f"median at epoch {row['epochs']}"


@pytest.mark.slow
def test_two_chosen_gpus_of_three(sweep_config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Ray of the sweep's own, on a machine that NVML says has three GPUs."""
    fake = FakeNvml(["NVIDIA A100", "NVIDIA T4", "NVIDIA L4"]).install(monkeypatch)
    config = sweep_config(
        experiment="tests.cases:ramp",
        trials=4,
        epochs=4,
        space={"x": {"uniform": [0.0, 1.0]}, "pause_s": 1.0},
        gpu={"fraction": 1, "devices": f"2,{fake.uuids[0]}"},
        cluster={"address": "local"},
    )
    result = sweep.run(config)
    assert result.summary["completed"] == 4
    assert {row["gpu"] for row in rows(result).values()} == {"0", "1"}
    assert result.summary["gpus"] == [
        {"index": 0, "uuid": fake.uuids[2], "name": "NVIDIA L4", "samples_per_s": None}
        | {"memory_gib": 3.0, "util_pct": 42.0},
        {"index": 1, "uuid": fake.uuids[0], "name": "NVIDIA A100", "samples_per_s": None}
        | {"memory_gib": 1.0, "util_pct": 40.0},
    ]
    parent, children = runs(config, result)
    assert parent.data.metrics["gpu/0/memory_gib"] == 3.0
    assert parent.data.metrics["gpu/1/power_w"] == 150.0
    assert parent.data.metrics["gpu/1/temperature_c"] == 61.0
    assert {child.data.tags["raygpu.gpu_index"] for child in children.values()} == {"0", "1"}


@pytest.mark.slow
def test_workers_are_reused_and_every_checkpoint_can_be_kept(sweep_config: Any) -> None:
    config = sweep_config(
        experiment="tests.cases:tells_its_process",
        trials=4,
        space={"x": {"uniform": [0.0, 1.0]}},
        gpu={"fraction": 1},
        keep="all",
    )
    result = sweep.run(config)
    assert len({record.metrics["pid"] for record in result.best}) == 1
    assert {(record.metrics["noted_share"], record.metrics["noted_trials"]) for record in result.best} == {(1.0, 1.0)}
    assert not {record.metrics["pid"] for record in result.best} & activity.living().keys(), "it trains no more"
    assert {path.name for path in (result.folder / "checkpoints").iterdir()} == set(rows(result))


@pytest.mark.parametrize("generation", [3, pytest.param(None, marks=pytest.mark.slow)])
def test_optuna_goes_by_generations_or_trial_by_trial(sweep_config: Any, generation: int | None) -> None:
    config = sweep_config(
        experiment="tests.cases:quadratic",
        trials=6,
        space={"x": {"uniform": [-2.0, 2.0]}},
        search={"algorithm": "tpe", "generation": generation},
    )
    result = sweep.run(config)
    assert result.summary["completed"] == 6
    assert list(rows(result)) == [f"t{i:04d}" for i in range(6)]


def test_a_killed_worker_goes_on_from_its_checkpoint(sweep_config: Any, tmp_path: Path) -> None:
    config = sweep_config(
        experiment="tests.cases:killed_once",
        space={"x": {"choice": [1]}, "folder": str(tmp_path)},
        checkpoint_s=1e-6,
    )
    result = sweep.run(config)
    assert result.summary["completed"] == 2
    assert result.summary["retries"] >= 1
    _, children = runs(config, result)
    client = MlflowClient(config.tracking.uri)
    for child in children.values():
        steps = [metric.step for metric in client.get_metric_history(child.info.run_id, "score")]
        assert steps == [1, 2, 3, 4, 5], "no epoch is lost and none is logged twice"


@pytest.mark.slow
def test_a_script_as_it_is_without_tracking(sweep_config: Any, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import argparse, json, sys\n"
        "p = argparse.ArgumentParser(); p.add_argument('--x', type=float); a = p.parse_args()\n"
        "print('hello from the script')\n"
        "for epoch in range(3):\n"
        "    print(json.dumps({'score': a.x * epoch, 'note': 'text is no metric'}))\n"
        "print('a warning', file=sys.stderr)\n"
    )
    values = {"command": "python train.py --x {x}", "space": {"x": {"uniform": [1.0, 2.0]}}}
    config = sweep_config(experiment=None, tracking={"enabled": False}, **values)
    result = sweep.run(config, source_folder=tmp_path)
    assert result.summary["completed"] == 2
    assert result.summary["tracking"] == {"uri": None, "run_id": None}
    assert not (tmp_path / "mlflow.db").exists()
    output = (result.folder / "trials/t0000/output.txt").read_text()
    assert "hello from the script" in output
    assert "a warning" in output
    assert result.best[0].metrics == {"score": pytest.approx(2 * result.best[0].trial.hyperparameters["x"])}


def test_an_unknown_metric_ends_the_sweep_and_leaves_nothing(sweep_config: Any) -> None:
    config = sweep_config(experiment="tests.cases:other_metric")
    with pytest.raises(BadInput, match="metric: read 'score'; the experiment reports: accuracy, loss"):
        sweep.run(config)
    assert not (Path(config.runs_dir) / "test").exists()
    experiments = [experiment.experiment_id for experiment in MlflowClient(config.tracking.uri).search_experiments()]
    assert MlflowClient(config.tracking.uri).search_runs(experiments) == []


def test_a_sweep_where_every_trial_fails_stops_early_exits_with_1_and_may_be_mended(
    sweep_config: Any, tmp_path: Path
) -> None:
    values: dict[str, Any] = {"space": {"folder": str(tmp_path)}, "trials": 8}
    config = sweep_config(experiment="tests.cases:fails_until_mended", **values)
    result, shown = run_told(config)
    assert result.exit_code == 1
    assert result.summary["best"] is None
    assert runs(config, result)[0].info.status == "FAILED"
    assert 3 <= result.summary["failed"] <= 5
    assert "stopped: the first trials have all failed alike (ValueError: not yet); --no-fail-fast goes on" in shown
    assert "--retry failed" in shown
    (tmp_path / "mended").touch()
    folder = RunDirectory.existing(result.folder)
    mended, _ = run_told(folder.read_config(), resume=folder, retry_failed=True)
    assert (mended.exit_code, mended.summary["completed"], mended.summary["failed"]) == (0, 8, 0)
    assert mended.summary["common_failure"] is None
