"""One Ray for all tests that need one: its start is the slowest part of any of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raygpu.config import SweepConfig
from raygpu.engines.cluster import ray_environment

# Tests of one process start Rays of their own and join clusters; those of commands take this out.
os.environ[ray_environment.ON_LOOPBACK] = "1"
ray_environment.prepare()
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what runs in its background
    signal.signal(signal.SIGINT, signal.default_int_handler)
# A local Ray writes a token to the home folder and from then on wants it of every cluster: not in a tests' process.
os.environ["RAY_AUTH_MODE"] = "disabled"


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """A local Ray cluster of one node with 4 CPUs (as it is told) and one simulated GPU."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "num_gpus": 1, "include_dashboard": False})
    yield cluster.address
    cluster.shutdown()


@pytest.fixture
def sweep_config(ray_address: str, tmp_path: Path) -> Any:
    """Makes the configuration of a small sweep that writes below tmp_path."""

    def make(**values: Any) -> SweepConfig:
        defaults: dict[str, Any] = {
            "name": "test",
            "metric": "score",
            "direction": "max",
            "trials": 2,
            "runs_dir": str(tmp_path / "runs"),
            "profiles": str(tmp_path / "profiles"),
            "gpu": {"fraction": 0.5},
            "tracking": {"uri": f"sqlite:///{tmp_path}/mlflow.db"},
            "cluster": {"address": ray_address},
            "space": {"x": 1},
        }
        return SweepConfig.model_validate(defaults | values)

    return make


class _NoRay:
    """In place of `starting.started`: no fault of the input has to wait for Ray."""

    def __init__(self, *arguments: Any, **options: Any) -> None: ...

    def __enter__(self) -> Future[Any]:
        device, node = SimpleNamespace(uuid=None), SimpleNamespace(num_gpus=1, num_cpus=4)
        future: Future[Any] = Future()
        future.set_result(SimpleNamespace(devices=[device], nodes=[node]))
        return future

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture
def no_ray() -> type[_NoRay]:
    return _NoRay
