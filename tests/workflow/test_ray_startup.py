"""A command that is interrupted while Ray starts."""

from __future__ import annotations

import io
import time
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
    """A thread starts Ray, and cannot be stopped half-way: that takes a busy machine a minute."""
    ended: list[bool] = []

    def connect(*_: object) -> Any:
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
