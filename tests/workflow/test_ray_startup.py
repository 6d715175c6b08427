"""What a command's first workers import while Ray starts, and a command that is interrupted meanwhile."""

from __future__ import annotations

import io
import os
import signal
import time
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raygpu.cli.console import LiveConsole
from raygpu.config.sections import ClusterSection
from raygpu.engines.cluster import remote_cluster
from raygpu.workflow import ray_startup


def test_a_command_that_is_interrupted_says_that_it_waits_for_rays_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A thread starts Ray, and cannot be stopped half-way: that takes a busy machine a minute. The second Ctrl-C comes
    meanwhile, and the Ray is closed all the same."""
    ended: list[bool] = []

    def connect(*_: object) -> Any:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)
        return SimpleNamespace(close=lambda: ended.append(True))

    monkeypatch.setattr(remote_cluster, "connect", connect)
    monkeypatch.setattr(ray_startup.ray_environment, "prepare", lambda **_: None)
    stream = io.StringIO()
    section = ClusterSection(address="10.0.0.1:6379")
    config: Any = SimpleNamespace(cluster=section, COMMAND="train", name="test", gpu=None)
    console = LiveConsole(stream=stream)
    with (
        pytest.raises(KeyboardInterrupt),
        ray_startup._starting(config, (), tmp_path, console, False, None),
    ):
        raise KeyboardInterrupt
    assert stream.getvalue().startswith("interrupted; Ray still starts, and is ended once it has, in 60 s at most")
    assert ended == [True]


def test_the_modules_that_first_workers_import_exist() -> None:
    modules = {module for kinds in ray_startup.WORKER_MODULES.values() for of in kinds.values() for module in of}
    assert not [module for module in {*modules, *ray_startup.FUSED_MODULES} if find_spec(module) is None]


@pytest.mark.parametrize(
    ("command", "gpus", "cpus", "workers"),
    [
        ("sweep", 0, 2, 1),
        ("sweep", 4, 4, 2),
        ("sweep", 2, 16, 2),
        ("train", 0, 1, 1),
        ("train", 0, 4, 2),
        ("train", 8, 32, 9),
    ],
)
def test_a_training_s_controller_and_workers_import_and_of_a_sweep_half_of_the_cpus(
    command: str, gpus: int, cpus: int, workers: int
) -> None:
    preload = ray_startup._preload(command, gpus, cpus)
    assert preload.workers == workers
    preload.close()
