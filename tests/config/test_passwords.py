"""Passwords are kept nowhere, and come back from the environment."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from raygpu.config import SweepConfig, load
from raygpu.config.sections import TrackingSection, completed
from raygpu.errors import BadInput
from raygpu.records.run_directory import RunDirectory

WHOLE = "postgresql://me:s3cret-word@host/runs"
KEPT = "postgresql://me:***@host/runs"


def test_a_runs_folder_has_no_password(tmp_path: Path) -> None:
    config = SweepConfig.model_validate({"experiment": "a:B", "trials": 1, "tracking": {"uri": WHOLE}})
    folder = RunDirectory.create(tmp_path, "one")
    folder.write_config(config, tmp_path)
    assert tomllib.loads(folder.config.read_text())["tracking"]["uri"] == KEPT
    assert all(b"s3cret" not in path.read_bytes() for path in folder.path.rglob("*") if path.is_file())


def test_it_comes_back_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", WHOLE)
    assert completed(KEPT) == WHOLE
    assert completed("sqlite:///runs/mlflow.db") == "sqlite:///runs/mlflow.db"
    assert completed("postgresql://other:pw@host/runs") == "postgresql://other:pw@host/runs"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://me:s3cret-word@elsewhere/runs")
    with pytest.raises(BadInput, match="set MLFLOW_TRACKING_URI to the whole of it") as fault:
        completed(KEPT)
    assert "s3cret" not in str(fault.value)


def test_the_environment_says_where_runs_go_unless_the_configuration_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    assert TrackingSection().found().uri == "http://mlflow:5000"
    assert TrackingSection(experiment="mine").found().uri == "http://mlflow:5000"
    assert TrackingSection(uri="sqlite:///runs/mlflow.db").found().uri == "sqlite:///runs/mlflow.db"
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert TrackingSection().found().uri == "sqlite:///runs/mlflow.db"


def test_a_fault_shows_no_password(tmp_path: Path) -> None:
    values = {"experiment": "a:B", "trials": 1}
    with pytest.raises(BadInput) as fault:
        load(None, {"storage": "s3://key:s3cret@bucket"}, SweepConfig, values)
    assert "s3://key:***@bucket" in str(fault.value)
    assert "s3cret" not in str(fault.value)
