"""Uploads through a server that takes its time: it answers once it has passed the file on."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from raygpu.errors import TrackingError
from raygpu.tracking import models
from raygpu.tracking.runs import RunTree
from raygpu.tracking.upload_time import SHORTEST_S, largest, time_for
from tests.tracking.proxy import proxied
from tests.tracking.services import Server

VARIABLE = "MLFLOW_HTTP_REQUEST_TIMEOUT"


def test_an_upload_lasts_longer_than_another_request(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "1")  # in the place of 10 s
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "model.pt").write_bytes(b"weights")
    with proxied(server.uri) as proxy:
        tree = RunTree.open(proxy.uri, "slow")
        tree.patience_s = 0
        run_id = tree.start_run("slow", {}, {})
        proxy.upload_s = 2.0
        tree.log_artifact(run_id, tmp_path / "checkpoint", "checkpoint")
        tree.log_artifact(run_id, tmp_path / "checkpoint" / "model.pt")
        tree.log_text(run_id, "Traceback", "error.txt")
        names = {file.path for file in tree.mlflow.list_artifacts(run_id)}
        assert names == {"checkpoint", "model.pt", "error.txt"}
    assert os.environ[VARIABLE] == "1"


def test_a_model_has_the_time_of_its_files(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    inputs = np.ones((2, 3), np.float32)
    with proxied(server.uri) as proxy:
        tree = RunTree.open(proxy.uri, "slow-model")
        run_id = tree.start_run("slow", {}, {})
        proxy.upload_s = 1.1
        uri = models.log(tree, run_id, "torch", torch.nn.Linear(3, 1), None, inputs, np.ones((2, 1), np.float32))
        assert uri.startswith("models:/")
    assert os.environ[VARIABLE] == "1"


@pytest.mark.parametrize("usual", [None, "10", "500"])
def test_the_limit_is_raised_for_the_longest_of_several_uploads_alone(
    usual: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if usual is not None:
        monkeypatch.setenv(VARIABLE, usual)
    shortest = max(SHORTEST_S, int(usual or 120))
    with time_for(0):
        assert int(os.environ[VARIABLE]) == shortest
        with time_for(2_000_000_000):
            assert int(os.environ[VARIABLE]) == SHORTEST_S + 2000
        assert int(os.environ[VARIABLE]) == shortest
    assert os.environ.get(VARIABLE) == usual


def test_threads_that_upload_at_once_leave_the_variable_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "10")

    def upload(number: int) -> int:
        """Upload a file of so many megabytes, and return the limit meanwhile."""
        with time_for(number * 1_000_000):
            return int(os.environ[VARIABLE]) - SHORTEST_S - number

    with ThreadPoolExecutor(8) as threads:
        assert min(threads.map(upload, range(200))) >= 0
    assert os.environ[VARIABLE] == "10"


def test_a_limit_that_is_no_number_is_told(tree: RunTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tree.run_id is not None
    (tmp_path / "file").write_text("content")
    monkeypatch.setenv(VARIABLE, "soon")
    with pytest.raises(TrackingError, match=VARIABLE):
        tree.log_artifact(tree.run_id, tmp_path / "file")


def test_the_largest_file_counts(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "large").write_bytes(b"x" * 300)
    (tmp_path / "small").write_bytes(b"x")
    assert (largest(tmp_path), largest(tmp_path / "small"), largest(tmp_path / "deep" / "large")) == (300, 1, 300)
