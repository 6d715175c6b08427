from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from raygpu.config import SweepConfig, TrainConfig
from raygpu.records.run_directory import RunDirectory
from raygpu.records.score_on_test import TEST, ScoreOnTest
from raygpu.tracking.client import Refused
from raygpu.tracking.runs import RunTree
from raygpu.tracking.session import SweepSession, TrainSession


def test_a_score_on_the_test_data_does_not_stay_beside_another_winner(tmp_path: Path) -> None:
    folder = RunDirectory.create(tmp_path, "sweep")
    values = {"experiment": "a:B", "metric": "accuracy", "trials": 1, "epochs": 1, "space": {"lr": 0.1}}
    session = SweepSession(SweepConfig.model_validate(values), folder, None)
    counts = dict.fromkeys(("completed", "diverged", "stopped_early", "failed"), 0)
    summary: dict[str, Any] = {**counts, "score": "last", "best": {"trial_id": "t0001", "score": 0.9, "epoch": 1}}
    assert "test/loss" not in session._ending(summary, interrupted=False).metrics
    earlier = ScoreOnTest.of(4, {"t0000": {"loss": 0.5}}).as_dict()
    folder.write_run({TEST: earlier})
    assert math.isnan(session._ending(summary, interrupted=False).metrics["test/loss"])
    summary[TEST] = ScoreOnTest.of(4, {"t0001": {"loss": 0.3}}).as_dict()
    assert session._ending(summary, interrupted=False).metrics["test/loss"] == 0.3


def test_a_score_on_the_test_data_does_not_stay_beside_another_best_epoch_of_a_training(tmp_path: Path) -> None:
    folder = RunDirectory.create(tmp_path, "mine")
    session = TrainSession(TrainConfig(experiment="a:B", metric="accuracy", epochs=1), folder, None)
    summary: dict[str, Any] = {"best": {"score": 0.9, "epoch": 1}}
    assert "test/loss" not in session._ending(summary, interrupted=False).metrics
    folder.write_run({TEST: ScoreOnTest.of(4, {"train": {"loss": 0.5}}).as_dict()})
    assert math.isnan(session._ending(summary, interrupted=False).metrics["test/loss"])
    summary[TEST] = ScoreOnTest.of(4, {"train": {"loss": 0.3}}).as_dict()
    assert session._ending(summary, interrupted=False).metrics["test/loss"] == 0.3


def test_an_empty_id_of_a_run_is_none(tmp_path: Path) -> None:
    """A command before may have noted one, where a proxy had answered with nothing."""
    folder = RunDirectory.create(tmp_path, "sweep")
    folder.write_run({"mlflow_run_id": ""})
    values = {"experiment": "a:B", "metric": "accuracy", "trials": 1, "epochs": 1, "space": {"lr": 0.1}}
    session = SweepSession(SweepConfig.model_validate(values), folder, None)
    assert session.run_id is None


@pytest.mark.parametrize("times", [1, 2])
def test_a_configuration_that_was_not_taken_as_the_run_began_comes_at_its_end(
    tmp_path: Path, sqlite_uri: str, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    log_artifact, faults, logged = RunTree.log_artifact, ["away"] * times, []

    def away(tree: RunTree, run_id: str, path: Path, artifact_path: str | None = None) -> None:
        """Refuse the configuration, some times."""
        if path.name == "config.toml" and faults:
            raise Refused(faults.pop())
        logged.append(path.name)
        log_artifact(tree, run_id, path, artifact_path)

    monkeypatch.setattr(RunTree, "log_artifact", away)
    folder = RunDirectory.create(tmp_path, "mine")
    config = TrainConfig.model_validate(
        {"experiment": "a:B", "metric": "accuracy", "epochs": 1, "tracking": {"uri": sqlite_uri}}
    )
    folder.write_config(config, tmp_path)
    session = TrainSession(config, folder, lambda: RunTree.open(sqlite_uri, "raygpu"))
    session.tree()
    summary: dict[str, Any] = {"best": {"score": 0.9, "epoch": 1}, "tracking": session.identity(interrupted=False)}
    session.close(summary, interrupted=False)
    assert ("config.toml" in logged) == (times == 1)
    assert summary["tracking"]["fault"] == (
        None if times == 1 else "config.toml is not among the run's artifacts: away"
    )
