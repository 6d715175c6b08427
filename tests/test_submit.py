"""Commands as jobs of a Ray cluster with a token: three nodes on loopback, object storage, nothing shared but that."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from raygpu import submit
from raygpu.engines.cluster import ray_environment
from raygpu.storage import Storage, _file_system
from tests.services.ray_cluster import TOKEN, RayCluster
from tests.services.s3 import BUCKET, s3

WORKERS = ("127.0.0.12", "127.0.0.13", "127.0.0.14")
PROJECT = """
import os, time
from pathlib import Path

import raygpu

def train(config):
    print("begun at", os.getcwd())
    state = raygpu.load({"epoch": 0})
    for epoch in range(state["epoch"], config["epochs"]):
        time.sleep(config["seconds"])
        raygpu.checkpoint({"epoch": epoch + 1})
        raygpu.report(
            score=epoch + config["x"],
            own_raygpu=float("py_modules" in raygpu.__file__),
            key=float(os.environ.get("PROJECT_KEY") == "k3y"),
        )
"""
CONFIGURATION = """
experiment = "project:train"
trials = 4
metric = "score"
direction = "max"
checkpoint_s = 0.5

[gpu]
fraction = 0.5

[space]
x = { uniform = [0.0, 1.0] }
epochs = 16
seconds = 0.5

[tracking]
enabled = false
"""

NET = """
import numpy as np
from torch import nn

from raygpu import Splits, TorchExperiment

class Net(TorchExperiment):
    def data(self):
        x = np.random.default_rng(0).normal(size=(400, 8)).astype(np.float32)
        return Splits.of(x, (x.sum(axis=1) > 0).astype(np.int64), validation=0.2)

    def model(self, hp):
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
"""
NET_CONFIGURATION = """
experiment = "net:Net"
trials = 6
epochs = 3
metric = "accuracy"

[gpu]
mode = "fused"

[space]
lr = { loguniform = [1e-3, 1e-1] }
"""
PLACED = 'experiment = "net:Net"\n[hyperparameters]\nlr = 0.1\n[placements]\nends = { "0" = 0, "2" = 1 }\n'

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def storage() -> Iterator[dict[str, str]]:
    """The variables by which object storage is found; set in this process too."""
    with pytest.MonkeyPatch.context() as patch, s3() as variables:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield variables
    _file_system.cache_clear()


@pytest.fixture(scope="module")
def cluster(storage: dict[str, str]) -> Iterator[RayCluster]:
    """A head without CPUs, and two nodes of one GPU."""
    found = RayCluster(storage)
    try:
        found.start()
        for address in WORKERS[:2]:
            found.add_node(address, num_cpus=2, num_gpus=1)
        yield found
    finally:
        found.stop()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person's own folder, and their token in the environment."""
    (tmp_path / "project.py").write_text(PROJECT)
    (tmp_path / "mine.toml").write_text(CONFIGURATION)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    return tmp_path


@pytest.fixture
def said(project: Path, cluster: RayCluster, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Said]]:
    """What `python -m raygpu.submit` says as a person types it, in this process, which has all imported."""

    def say(*words: str) -> Said:
        capsys.readouterr()
        return Said(submit.main([*words, "--address", cluster.dashboard]), *capsys.readouterr())

    yield say
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")  # that of the tests' process
        ray_environment.prepare()


class Said(NamedTuple):
    """The exit code and the output of a command."""

    returncode: int
    stdout: str
    stderr: str


def command(cluster: RayCluster, *words: str) -> subprocess.CompletedProcess[str]:
    """`python -m raygpu.submit` as a person types it."""
    left_out = ("RAY_AUTH_MODE", submit.ADDRESS_VARIABLE)
    return subprocess.run(
        [sys.executable, "-m", "raygpu.submit", *words, "--address", cluster.dashboard],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={name: value for name, value in os.environ.items() if name not in left_out},
    )


def results(name: str) -> Storage:
    return Storage.at(f"s3://{BUCKET}/runs") / name


@pytest.mark.slow
def test_a_sweep_from_outside_is_stopped_goes_on_and_survives_a_lost_node(
    cluster: RayCluster, said: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROJECT_KEY", "k3y")
    words = ["sweep", "mine.toml", "--name", "away", "--storage", f"s3://{BUCKET}/runs", "--env", "PROJECT_KEY"]
    following = threading.Thread(target=command, args=(cluster, *words))
    following.start()
    while not checkpoints(results("away") / "tune"):
        assert following.is_alive()
        time.sleep(0.5)
    details = _details(cluster, "sweep-away")
    assert "raygpu.job" in details
    assert "k3y" not in details, "secrets are no part of what the cluster lists"
    assert said("stop", "sweep-away").returncode == 0
    following.join()
    assert "stopped" in said("status", "sweep-away").stdout
    told = said("logs", "sweep-away").stdout
    assert f"go on with: python -m raygpu.submit sweep --resume s3://{BUCKET}/runs/away" in told
    assert json.loads(results("away").read("summary.json"))["interrupted"] > 0
    again = said(*words)
    assert again.returncode == 2
    assert again.stderr.endswith("has a job sweep-away already; choose another --name\n"), again.stderr
    assert len(again.stderr.splitlines()) == 1

    over = threading.Event()
    killer = threading.Thread(target=_kill_once_trials_run, args=(cluster, "away", over))
    killer.start()
    done = command(cluster, "sweep", "--resume", results("away").uri, "--env", "PROJECT_KEY")
    over.set()
    killer.join()
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"all of it in s3://{BUCKET}/runs/away" in done.stdout
    summary = json.loads(results("away").read("summary.json"))
    assert (summary["completed"], summary["interrupted"]) == (4, 0)
    assert summary["retries"] >= 1, "a node was lost, and its trials went on"
    rows = results("away").read("trials.csv").decode()
    assert rows.count("finished") == 4
    assert results("away").has("best.toml")
    assert (results("away") / "checkpoints").folders() == [summary["best"]["trial_id"]]
    assert "k3y" not in done.stdout + done.stderr
    job = re.search(r"sweep-away\S*(?= +succeeded +since )", said("list").stdout)
    assert job is not None
    assert command(cluster, "logs", job.group()).stdout in done.stdout


@pytest.mark.slow
def test_a_search_a_training_and_a_model_without_a_shared_disk(
    cluster: RayCluster, project: Path, new_store: Callable[[Path], str], tmp_path: Path
) -> None:
    """Fused trials; then the winner on two workers, from the search's folder in object storage, its parameters too."""
    cluster.add_node(WORKERS[2], num_cpus=2, num_gpus=1)  # one may have been lost
    (project / "net.py").write_text(NET)
    (project / "net.toml").write_text(NET_CONFIGURATION)
    tracking = ["--tracking.uri", new_store(tmp_path)]
    where = ["--storage", f"s3://{BUCKET}/runs"]
    done = command(cluster, "sweep", "net.toml", "--name", "search", *where, *tracking)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(results("search").read("summary.json"))
    assert (summary["mode"], summary["completed"]) == ("fused", 6)
    assert (results("search") / "checkpoints" / summary["best"]["trial_id"]).has("checkpoint.pt")

    found = ["--from", results("search").uri, "--warm-start", "--register", "net"]
    done = command(cluster, "train", *found, "--name", "final", "--workers", "2", "--epochs", "4", *where)
    assert done.returncode == 0, done.stdout + done.stderr
    trained = json.loads(results("final").read("summary.json"))
    assert (trained["workers"], trained["epochs"]) == (2, 4)
    assert trained["source"]["sweep"] == "search"
    assert trained["checkpoint"] == (results("final") / "checkpoints" / "best").uri
    assert (results("final") / "checkpoints" / "best").has("checkpoint.pt")
    assert "uri" in trained["model"], done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("name", "table"), [("pack", "points.csv"), ("place", "turns.csv")])
def test_a_measurement_on_a_node_that_does_not_reach_mlflow(
    cluster: RayCluster, project: Path, name: str, table: str
) -> None:
    """As on Kubernetes, where the head alone does. The job runs on a node with a GPU."""
    (project / "net.py").write_text(NET)
    text = 'experiment = "net:Net"\n[space]\nlr = 0.1\n' if name == "pack" else PLACED
    (project / "net.toml").write_text(text)
    words = [name, "net.toml", "--rounds", "2", *(["--most", "1"] if name == "pack" else ["--stages", "none"])]
    refused = command(cluster, *words, "--name", "away", "--tracking.uri", "http://127.0.0.1:1")
    assert refused.returncode
    advice = ["--tracking.enabled", "false", "--storage"]
    assert " ".join(advice) in _printed(cluster, f"{name}-away")
    done = command(cluster, *words, "--name", "apart", *advice, f"s3://{BUCKET}/{name}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f" in s3://{BUCKET}/{name}/apart" in _printed(cluster, f"{name}-apart")
    assert {table, "report.html", "config.toml"} <= set((Storage.at(f"s3://{BUCKET}/{name}") / "apart").files())


def _printed(cluster: RayCluster, job_id: str) -> str:
    """What a job has printed, by its node's own file: the agent of a node on loopback reads that of the head."""
    return "".join(path.read_text() for path in cluster.folder.glob(f"*/session_2*/logs/job-driver-{job_id}.log"))


def checkpoints(tune: Storage) -> set[str]:
    """Of Tune's trials."""
    return {
        f"{trial}/{inner}" for trial in tune.folders() for inner in (tune / trial).folders() if "checkpoint" in inner
    }


def _kill_once_trials_run(cluster: RayCluster, name: str, over: threading.Event) -> None:
    before = checkpoints(results(name) / "tune")
    while not over.wait(0.5):
        if checkpoints(results(name) / "tune") - before:
            cluster.kill(WORKERS[1])
            return


def _details(cluster: RayCluster, job_id: str) -> str:
    """All that the cluster tells of a job."""
    request = urllib.request.Request(
        f"{cluster.dashboard}/api/jobs/{job_id}", headers={"Authorization": f"Bearer {TOKEN}"}
    )
    with urllib.request.urlopen(request) as response:
        return str(response.read().decode())
