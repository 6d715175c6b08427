"""What a finished model's way to MLflow imports, and what it leaves of the user's own use of MLflow."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import numpy as np
import pytest
from mlflow.tracking import fluent

from raygpu.config.sections import URI_VARIABLE
from raygpu.tracking import models
from raygpu.tracking.runs import RunTree

CODE = """
import sys
from raygpu.tracking.models import without_lightning
sys.meta_path.insert(0, type("No", (), {"find_spec": staticmethod(lambda name, *_: 1 / 0 if name == LOOKED else None)}))
LOOKED = "pytorch_lightning"
with without_lightning():
    import mlflow.pytorch
assert callable(mlflow.pytorch.log_model) and LOOKED not in sys.modules
sys.modules[LOOKED] = theirs = object()
with without_lightning():
    assert sys.modules[LOOKED] is theirs
assert sys.modules[LOOKED] is theirs
"""


def test_lightning_is_not_imported_and_stays_where_it_is() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def own_run(tree: RunTree, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run that the user's code has begun in an experiment of its own, and has left active."""
    for name in (URI_VARIABLE, "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.setenv(name, "")  # so that it is taken back
    monkeypatch.setattr(fluent, "_active_experiment_id", None)
    mlflow.set_tracking_uri(tree.uri)
    mlflow.set_experiment("mnist")
    yield mlflow.start_run()
    while mlflow.active_run() is not None:
        mlflow.end_run()
    mlflow.set_tracking_uri(None)  # type: ignore[arg-type]


def test_a_model_goes_to_its_run_beside_the_run_and_the_experiment_of_the_users_code(
    tree: RunTree, own_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    active: list[Any] = []

    def log_model(**options: Any) -> SimpleNamespace:
        active.append(mlflow.active_run())
        return SimpleNamespace(model_uri="models:/m-1")

    monkeypatch.setattr(import_module("mlflow.pyfunc"), "log_model", log_model)
    (tmp_path / "program").write_bytes(b"program")
    few = np.ones((2, 3), np.float32)
    assert models.log(tree, str(tree.run_id), "torch", None, tmp_path / "program", few, few) == "models:/m-1"
    (run,) = active
    assert (run.info.run_id, run.info.experiment_id) == (tree.run_id, tree.experiment_id)
    assert own_run.info.experiment_id != tree.experiment_id
    assert mlflow.active_run() is own_run
    assert mlflow.get_run(own_run.info.run_id).info.status == "RUNNING"
    with mlflow.start_run(nested=True) as later:
        assert later.info.experiment_id == own_run.info.experiment_id
    assert os.environ["MLFLOW_EXPERIMENT_ID"] == own_run.info.experiment_id
