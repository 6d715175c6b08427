"""Uploads through a server that takes its time: it answers once it has passed the file on."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
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
        proxy.upload_s = 1.2
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


@pytest.mark.parametrize("usual", [10, 500])
def test_the_limit_is_raised_for_the_longest_of_several_uploads_alone(
    usual: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(usual))
    shortest = max(SHORTEST_S, usual)
    with time_for(0, served=True):
        assert int(os.environ[VARIABLE]) == shortest
        with time_for(2_000_000_000, served=True):
            assert int(os.environ[VARIABLE]) == SHORTEST_S + 2000
        assert int(os.environ[VARIABLE]) == shortest
    assert os.environ[VARIABLE] == str(usual)


@pytest.mark.parametrize("usual", [10, 500])
@pytest.mark.parametrize("later_bytes", [0, 10_000_000])
def test_the_user_s_limit_stays_for_an_upload_that_outlasts_the_first(
    usual: int, later_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(usual))
    later = ExitStack()
    with time_for(0, served=True):
        later.enter_context(time_for(later_bytes, served=True))
    assert int(os.environ[VARIABLE]) == max(SHORTEST_S + later_bytes // 1_000_000, usual)
    later.close()
    assert os.environ[VARIABLE] == str(usual)


def test_an_upload_to_a_store_without_a_server_changes_nothing(
    tree: RunTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tree.run_id is not None
    (tmp_path / "file").write_text("content")
    monkeypatch.delenv(VARIABLE, raising=False)
    changes: list[str] = []
    assign = type(os.environ).__setitem__

    def noted(environment: os._Environ[str], name: str, value: str) -> None:
        changes.append(name)
        assign(environment, name, value)

    monkeypatch.setattr(type(os.environ), "__setitem__", noted)
    tree.log_artifact(tree.run_id, tmp_path / "file")
    tree.log_text(tree.run_id, "content", "text")
    assert VARIABLE not in changes


def test_threads_that_upload_at_once_leave_the_variable_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "10")

    def upload(number: int) -> int:
        """Upload a file of so many megabytes, and return the limit meanwhile."""
        with time_for(number * 1_000_000, served=True):
            return int(os.environ[VARIABLE]) - SHORTEST_S - number

    with ThreadPoolExecutor(8) as threads:
        assert min(threads.map(upload, range(200))) >= 0
    assert os.environ[VARIABLE] == "10"


def test_a_limit_that_is_no_number_is_told(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = RunTree.open(server.uri, "limit")
    run_id = tree.start_run("limit", {}, {})
    (tmp_path / "file").write_text("content")
    monkeypatch.setenv(VARIABLE, "soon")
    with pytest.raises(TrackingError, match=VARIABLE):
        tree.log_artifact(run_id, tmp_path / "file")


def test_the_largest_file_counts(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "large").write_bytes(b"x" * 300)
    (tmp_path / "small").write_bytes(b"x")
    assert (largest(tmp_path), largest(tmp_path / "small"), largest(tmp_path / "deep" / "large")) == (300, 1, 300)
