"""Unequal GPUs: a box of two cards that NVML tells of, and a cluster of two types of node, each on a real Ray."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from raygpu import sweep
from raygpu.cli.sweep_view import SweepConsole
from raygpu.config import SweepConfig
from tests.fakes.nvml import FakeNvml

pytestmark = pytest.mark.timeout(900)
LARGE, SMALL = "NVIDIA GeForce RTX 3090", "NVIDIA GeForce RTX 2080"


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """A card with 24 GiB, and one with 8 GiB, of which a desktop holds two."""
    fake = FakeNvml([SMALL, LARGE])
    fake.devices[0].total_gib, fake.devices[0].used_gib = 8.0, 2.0
    fake.devices[1].total_gib, fake.devices[1].used_gib = 24.0, 0.5
    return fake.install(monkeypatch)


def told(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def at_once(trials: list[dict[str, Any]]) -> int:
    """The most of them that ran at the same time."""
    moments = sorted([(t["began"], 1) for t in trials] + [(t["ended"], -1) for t in trials])
    running = most = 0
    for _, change in moments:
        running += change
        most = max(most, running)
    return most


def alive(pids: set[int]) -> set[int]:
    """Zombies, which are gone but for their exit status, do not count."""
    found = set()
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            found.add(pid)
    return found


def gone(pids: set[int], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while alive(pids) and time.monotonic() < deadline:
        time.sleep(0.2)
    return not alive(pids)


def two_cards(tmp_path: Path, **values: Any) -> SweepConfig:
    """A sweep of 14 trials, on a Ray of its own."""
    (folder := tmp_path / "told").mkdir(parents=True)
    space = {"x": {"grid_search": list(range(14))}, "folder": str(folder), "pause_s": 0.6}
    defaults: dict[str, Any] = {
        "name": "test",
        "metric": "score",
        "runs_dir": str(tmp_path / "runs"),
        "tracking": {"enabled": False},
        "experiment": "tests.unequal_cases:tells_where",
        "trials": None,
        "search": {"algorithm": "grid"},
        "gpu": {"fraction": "auto"},
        "cluster": {"address": "local"},
    }
    return SweepConfig.model_validate(defaults | values | {"space": space | values.get("space", {})})


@pytest.mark.slow
def test_a_box_of_two_cards(
    box: FakeNvml, new_store: Callable[[Path], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raygpu.devices.host.num_cpus", lambda: 8)
    monkeypatch.setattr("raygpu.devices.host.available_memory_gib", lambda: 64.0)
    config = two_cards(tmp_path, tracking={"uri": new_store(tmp_path)})
    shown = io.StringIO()
    result = sweep.run(config, console=SweepConsole(stream=shown))
    assert result.summary["completed"] == 14
    large, small = result.summary["plan"]["devices"]
    assert (large["device"], small["device"]) == (f"{LARGE}, 24 GiB", f"{SMALL}, 8 GiB"), "the faster first"
    assert large["trials_per_gpu"] > small["trials_per_gpu"] == 3, "6 GiB are free, 1.5 are assumed for each"
    assert f"plan: on {SMALL}, 8 GiB: 3 per GPU" in shown.getvalue()
    trials = told(tmp_path / "told")
    by_card = {uuid: [t for t in trials if t["gpus"] == [uuid]] for uuid in box.uuids}
    assert sum(map(len, by_card.values())) == 14
    assert all(t["visible"] == uuid for uuid, of in by_card.items() for t in of)
    assert len({t["node"] for t in trials}) == 2
    assert 1 <= at_once(by_card[box.uuids[0]]) <= 3
    assert 1 <= at_once(by_card[box.uuids[1]]) <= large["trials_per_gpu"]
    assert len({t["pid"] for t in trials}) < 14, "workers are reused"
    assert gone({t["pid"] for t in trials} | {t["raylet"] for t in trials}, within_s=20)
    with (result.folder / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    hours = [float(row["rgu_hours"]) for row in rows if row["gpu"] == "1"]
    assert hours
    assert all(h * large["trials_per_gpu"] > 0.3 / 3600 for h in hours), "an RTX 3090 is worth more than 1 RGU"
    assert {row["rgu_hours"] for row in rows if row["gpu"] == "0"} == {""}, "an RTX 2080 has no RGU"
    assert result.summary["rgu_hours"] == pytest.approx(sum(hours), rel=0.05)
    client = MlflowClient(config.tracking.uri)
    parent = client.get_run(result.summary["tracking"]["run_id"])
    runs = client.search_runs([parent.info.experiment_id], "tags.`raygpu.kind` = 'trial'")
    logged = {run.data.tags["raygpu.trial_id"]: run.data.metrics.get("rgu_hours") for run in runs}
    for row in rows:
        assert logged[row["id"]] == (pytest.approx(float(row["rgu_hours"]), abs=1e-5) if row["rgu_hours"] else None)


@pytest.mark.slow
def test_arrays_on_a_box_of_two_cards(box: FakeNvml, tmp_path: Path) -> None:
    """An array takes a card of any type; trials that cannot be fused are packed by type in the same sweep."""
    config = two_cards(
        tmp_path,
        experiment="tests.fused_cases:Mixed",
        metric="accuracy",
        epochs=2,
        gpu={"mode": "fused", "fraction": "auto"},
    )
    space = {"lr": {"grid_search": [0.05, 0.1, 0.2]}, "kind": {"grid_search": ["mlp", "lstm"]}, "hidden": 16}
    result = sweep.run(config.model_copy(update={"space": space}))
    assert result.summary["completed"] == 6
    assert result.summary["mode"] == "fused"
    assert [part["trials_per_gpu"] for part in result.summary["plan"]["devices"]] == [1, 1]
    with (result.folder / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["gpu"] for row in rows if row["kind"] == "mlp"} == {"0", "1"}
    worth = {row["id"]: row["rgu_hours"] for row in rows if row["gpu"] == "1"}
    assert all(float(hours) > 0 for hours in worth.values())


@pytest.mark.slow
def test_no_node_stays_after_an_interruption(box: FakeNvml, tmp_path: Path) -> None:
    space = {"x": {"grid_search": list(range(6))}, "driver": os.getpid()}
    config = two_cards(
        tmp_path,
        experiment="tests.unequal_cases:tells_where_and_interrupts",
        space=space,
        gpu={"fraction": 0.5},
    )
    result = sweep.run(config)
    assert result.interrupted
    pids = [path.name.split("-") for path in (tmp_path / "told").iterdir()]
    assert len({raylet for _, raylet in pids}) == 2
    assert gone({int(pid) for pair in pids for pid in pair}, within_s=20)


CRASH = """
import os, signal, sys, time
from raygpu.devices.nvml import Gpu
from raygpu.engines.cluster import ray_environment
ray_environment.prepare()
from raygpu.engines.cluster.local_cluster import start_local
import ray

cluster = start_local([Gpu(0, "GPU-0", "A", 8.0), Gpu(1, "GPU-1", "B", 24.0)])

@ray.remote(num_cpus=0, num_gpus=0.5)
class Where:
    def tell(self):
        return os.getpid(), os.getppid(), ray.get_runtime_context().get_node_id()

for node in cluster.nodes:
    needed = cluster.needed(node.device_type)
    assert needed.labels is None and needed.resources, needed
    actor = Where.options(resources=dict(needed.resources)).remote()
    print(*ray.get(actor.tell.remote()), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_no_node_stays_after_a_crash(tmp_path: Path) -> None:
    """With tokens, as a local Ray has them."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_AUTH_MODE"}
    done = subprocess.run(
        [sys.executable, "-c", CRASH],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env=environment | {"HOME": str(tmp_path)},
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if line[:1].isdigit()]  # Ray may warn of a slow start
    assert len({node for _, _, node in lines}) == 2
    assert (tmp_path / ".ray" / "auth_token").is_file()
    assert gone({int(pid) for line in lines for pid in line[:2]}, within_s=40)


@pytest.mark.slow
def test_a_cluster_of_three_types(tmp_path: Path) -> None:
    """Ray names the types by itself where there are GPUs; else nodes are told by their ids."""
    from ray.cluster_utils import Cluster

    names = ["A100", "T4", ""]
    first, *others = [{f"accelerator_type:{name}": 1} if name else {} for name in names]
    node = {"num_cpus": 4, "num_gpus": 1}
    head = {**node, "resources": first, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for resources in others:
            cluster.add_node(**node, resources=resources)
        cluster.wait_for_nodes()
        where = {"cluster": {"address": cluster.address}, "gpu": {"fraction": 0.5}}
        result = sweep.run(two_cards(tmp_path, **where))
    finally:
        cluster.shutdown()
    assert result.summary["completed"] == 14
    assert sorted(part["device"] for part in result.summary["plan"]["devices"]) == sorted(names)
    trials = told(tmp_path / "told")
    nodes = {t["node"] for t in trials}
    assert len(nodes) == 3
    for one in nodes:
        assert 1 <= at_once([t for t in trials if t["node"] == one]) <= 2
