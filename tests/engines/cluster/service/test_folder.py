"""The folder of a user's service."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest

from raygpu.engines.cluster.service import folder as module
from raygpu.engines.cluster.service.folder import LONGEST, ServiceFolder


@pytest.mark.parametrize("length", [LONGEST, LONGEST + 1])
def test_every_socket_of_a_long_runtime_directory_can_be_bound(
    monkeypatch: pytest.MonkeyPatch, length: int, tmp_path: Path
) -> None:
    base = "/tmp/raygpu-runtime-"
    runtime = Path(base + "r" * (length - len(base)))
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setattr(module, "SESSIONS", f"{tmp_path}/s{{}}")
    try:
        own = ServiceFolder()
        assert own.path.is_relative_to(runtime) == (length == LONGEST)
        if length == LONGEST:
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(str(own.path / "standby-1234567-123456"))
    finally:
        shutil.rmtree(runtime)
