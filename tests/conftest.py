"""What many tests share, because its start is the slowest part of them: one Ray, and one MLflow store to copy.

`scheduling` orders the files, `garbage` spares imported libraries the collector, and `time_spent` says at the end where
the time went.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import numpy as np
import pytest

from raygpu import reporting
from raygpu.config import SweepConfig
from raygpu.engines.cluster import ray_environment
from tests.garbage import pytest_collection, pytest_runtest_protocol
from tests.imported import forget
from tests.power_loss import Disk
from tests.scheduling import pytest_collection_modifyitems, pytest_xdist_make_scheduler
from tests.time_spent import pytest_configure, pytest_sessionfinish, pytest_terminal_summary, pytest_testnodedown

__all__ = [
    "pytest_collection",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_runtest_protocol",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
    "pytest_testnodedown",
    "pytest_xdist_make_scheduler",
]

hypothesis.settings.register_profile("any machine", deadline=None)  # a busy one is no fault of the code
hypothesis.settings.register_profile("quick", deadline=None, max_examples=30)  # of `make test`
hypothesis.settings.load_profile("any machine")

# Each of the processes that tests start would compile all modules again, a third of a worker's time, if it kept none.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Threads of torch that wait for each other give up the processor, in Ray's workers too: several tests share the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Tests of one process start Rays of their own and join clusters; those of commands take this out.
os.environ[ray_environment.ON_LOOPBACK] = "1"
os.environ[ray_environment.PREEMPTION_WATCHER] = "0"  # as in a local Ray
ray_environment.prepare()
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what runs in its background
    signal.signal(signal.SIGINT, signal.default_int_handler)
# A local Ray writes a token to the home folder and from then on wants it of every cluster: not in a tests' process.
os.environ["RAY_AUTH_MODE"] = "disabled"

# MLflow's module for torch imports Lightning, which takes three seconds and adds a callback that nobody asks for.
sys.modules.setdefault("pytorch_lightning", None)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def seeded_generators() -> None:
    """The global random generators are in the same state for a test, whatever ran before it."""
    random.seed(0)
    np.random.seed(0)  # the one that libraries draw from
    if "torch" in sys.modules:
        import torch

        torch.manual_seed(0)
    if "tensorflow" in sys.modules:
        import tensorflow

        tensorflow.random.set_seed(0)


@pytest.fixture(autouse=True)
def denormal_numbers() -> Iterator[None]:
    """A training in this process turns them off for its thread; Hypothesis wants them."""
    yield
    if "torch" in sys.modules:
        import torch

        torch.set_flush_denormal(False)


@pytest.fixture(autouse=True)
def imports_are_forgotten(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a test wrote and imported is gone for the next one, which may write another module of the same name."""
    yield
    written = tmp_path_factory.getbasetemp()
    if any(folder.startswith(str(written)) for folder in sys.path):
        sys.path[:] = [folder for folder in sys.path if not folder.startswith(str(written))]
        forget(written)


@pytest.fixture(autouse=True)
def reports_go_nowhere() -> Iterator[None]:
    """A function's training that a test has not closed would wait for ever for the reports of the next test."""
    yield
    reporting.use(None)


@pytest.fixture(scope="session")
def mlflow_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite store in its first state: MLflow works for more than a second to create one. Processes of one run share
    it."""
    from raygpu.tracking.runs import RunTree

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    shared = folder / "template.db"
    with (folder / "template.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not shared.exists():
            path = tmp_path_factory.mktemp("template") / "new folder" / "mlflow.db"
            RunTree.open(f"sqlite:///{path}", "first")
            with closing(sqlite3.connect(path)) as database:  # it is copied: what its log holds has to be in it
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            shutil.copy(path, folder / "template.part")
            os.replace(folder / "template.part", shared)
    return shared


@pytest.fixture(scope="session")
def new_store(mlflow_template: Path) -> Callable[[Path], str]:
    """Makes a SQLite store in a folder, which is made if need be; returns its URI."""

    def make(folder: Path) -> str:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(mlflow_template, folder / "mlflow.db")
        return f"sqlite:///{folder / 'mlflow.db'}"

    return make


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of an environment with raygpu's wheel."""
    pytest.importorskip("setuptools")
    from tests.installed_wheel import install

    return install(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """A local Ray cluster of one node with 2 CPUs (as it is told) and one simulated GPU."""
    from ray.cluster_utils import Cluster

    from tests.services import shared_ray

    node = {"num_cpus": 2, "num_gpus": 1, "include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    with shared_ray.one_probe_a_node(), shared_ray.no_variables_a_trial():
        yield cluster.address
    cluster.shutdown()


@pytest.fixture
def joined_ray(ray_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that would start a local Ray of their own join that of the tests: a start takes as long as a test, and
    `engines/cluster` tests it."""
    from tests.services import shared_ray

    monkeypatch.setattr("raygpu.engines.cluster.local_cluster.start_local", shared_ray.joining(ray_address))


@pytest.fixture
def sweep_config(ray_address: str, new_store: Callable[[Path], str], tmp_path: Path) -> Any:
    """Makes the configuration of a small sweep, one trial at a time, that writes below tmp_path."""

    def make(**values: Any) -> SweepConfig:
        defaults: dict[str, Any] = {
            "name": "test",
            "metric": "score",
            "direction": "max",
            "trials": 2,
            "runs_dir": str(tmp_path / "runs"),
            "profiles": str(tmp_path / "profiles"),
            "gpu": {"fraction": 1.0},
            "tracking": {"uri": f"sqlite:///{tmp_path}/mlflow.db"},
            "cluster": {"address": ray_address},
            "space": {"x": 1},
        }
        config = SweepConfig.model_validate(defaults | values)
        if config.tracking.enabled and not (tmp_path / "mlflow.db").exists():
            new_store(tmp_path)
        return config

    return make


class _NoRay:
    """In place of `ray_starting`: no fault of the input has to wait for Ray."""

    def __init__(self, config: Any, *arguments: Any, **options: Any) -> None:
        self.config = config

    def __enter__(self) -> Any:
        device, node = SimpleNamespace(uuid=None), SimpleNamespace(num_gpus=1, num_cpus=4)
        cluster = SimpleNamespace(devices=[device], nodes=[node])
        return SimpleNamespace(config=self.config, wait=lambda: cluster, trains=lambda source: None)

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture
def no_ray() -> type[_NoRay]:
    return _NoRay


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def losing_disk(tmp_path: Path) -> Iterator[Disk]:
    """A file system whose machine may lose its power."""
    disk = Disk(tmp_path)
    try:
        yield disk
    finally:
        disk.close()
