"""A production training on a full disk, one that loses a process, and one whose Ray gets the signal that ends it and
was not open to the network before."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from ray.exceptions import ActorDiedError

from raygpu import train
from raygpu.cli.training_view import TrainConsole
from raygpu.config import TrainConfig
from raygpu.engines.cluster.cluster import Cluster
from raygpu.engines.cluster.dashboard import Dashboard
from raygpu.engines.train import production
from raygpu.engines.train.production import ProcessLost, ProductionRun
from tests.full_disk import fill_for_a_while
from tests.processes import LOOPBACK, as_users_have_it, listeners, terminate_all

pytestmark = pytest.mark.timeout(300)
VALUES: dict[str, Any] = {
    "name": "test",
    "experiment": "tests.train_cases:Small",
    "metric": "accuracy",
    "workers": 2,
    "hyperparameters": {"hidden": 8, "lr": 0.1, "momentum": 0.9, "batch_size": 16},
}


@pytest.mark.slow
def test_it_waits_for_space(ray_address: str, new_store: Callable[[Path], str], small_disk: Path) -> None:
    tracking = {"uri": new_store(small_disk.parent)}
    values = VALUES | {"epochs": 40, "runs_dir": str(small_disk), "tracking": tracking, "max_failures": 0}
    config = TrainConfig.model_validate(values | {"cluster": {"address": ray_address}})
    filler, full = fill_for_a_while(small_disk, lambda: list(small_disk.glob("test/checkpoints/training/checkpoint*")))
    shown = io.StringIO()
    result = train.run(config, console=TrainConsole(stream=shown))
    filler.join(timeout=60)
    assert full.is_set()
    assert f"no space left on the disk of {small_disk / 'test'}" in shown.getvalue()
    assert "there is space again" in shown.getvalue()
    assert result.summary["epochs"] == 40
    assert (result.summary["tracking"]["undelivered"], result.summary["tracking"]["fault"]) == (0, None)


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        ("mailbox", "the process that takes the workers' reports was lost"),
        ("controller", "Ray Train's controller, which starts the workers, was lost"),
        ("raylet", "Ray's raylet was ended by others"),
        ("head", "Ray's head was ended by others"),
    ],
)
def test_a_lost_process_is_one_line(lost: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def take() -> list[Any]:
        if lost == "mailbox":
            raise ActorDiedError
        return []

    fitting: Future[Any] = Future()
    if lost == "controller":
        fitting.set_exception(ActorDiedError())
    server = psutil.Popen(["true"])
    server.wait()
    servers = {lost: server} if lost in ("raylet", "head") else {}
    monkeypatch.setattr(production.ray_private_api, "servers", lambda: servers)
    take_remote = SimpleNamespace(remote=lambda: take)
    monkeypatch.setattr(production, "start_actor", lambda kind: SimpleNamespace(take=take_remote))
    monkeypatch.setattr(production.ray, "get", lambda asked: asked())
    monkeypatch.setattr(production, "_trainer", lambda setup, mailbox: SimpleNamespace(end=lambda: False))
    monkeypatch.setattr(production, "_fitting", lambda trainer: fitting)
    folder, living = SimpleNamespace(path=tmp_path), Cluster([], [], Dashboard(), local=True)
    setup: Any = SimpleNamespace(mailbox=None, folder=folder, max_failures=2, cluster=living, placing=None)
    with pytest.raises(ProcessLost, match=words):
        list(ProductionRun(setup))


CASE = """
experiment = "tests.train_cases:Small"
metric = "accuracy"
epochs = 100000
workers = 2
[hyperparameters]
hidden = 8
lr = 0.1
momentum = 0.9
batch_size = 16
[tracking]
enabled = false
"""


@pytest.mark.slow
def test_sigterm_to_all_processes_ends_it_at_once(tmp_path: Path) -> None:
    """Until then, each listener is on loopback, of the ranks too, which find each other by a store of torch's."""
    (tmp_path / "case.toml").write_text(CASE)
    command = [sys.executable, "-m", "raygpu.train", "case.toml", "--name", "t", "--runs-dir", "runs"]
    environment = {**as_users_have_it(), "PYTHONPATH": str(Path.cwd())}
    listening = set[tuple[str, str]]()
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        while not list((tmp_path / "runs").glob("t/checkpoints/training/checkpoint*")):
            assert process.poll() is None
            listening |= listeners(process.pid)
            time.sleep(0.2)
        listening |= listeners(process.pid)
        terminate_all(process)
        out, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130, out  # Ray itself gives up after a minute, with another one
    assert "interrupted; go on after the last checkpoint with: python -m raygpu.train --resume" in out
    names = {name for name, _ in listening}
    assert {"gcs_server", "raylet"} <= names
    assert any(name.startswith("ray::") and "Train" in name for name in names), names
    assert not {(name, address) for name, address in listening if address not in LOOPBACK}
