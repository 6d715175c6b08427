"""A Redis server as a pod's command and configuration start it, on loopback."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.tracking.services import free_port

START_S = 30


@contextmanager
def redis(folder: Path, command: Sequence[str], configuration: str, password: str) -> Iterator[int]:
    """Its port. folder: an empty one, for the container's /data, /etc/redis and /run/redis. Skips the test where the
    package is not installed."""
    if shutil.which("redis-server") is None:
        pytest.skip("there is no redis-server: install the package")
    port = free_port()
    for name in ("data", "etc", "run"):
        (folder / name).mkdir()
    paths = {"/run/redis": f"{folder}/run", "/etc/redis": f"{folder}/etc", "dir /data": f"dir {folder}/data"}

    def moved(text: str) -> str:
        for there, here in paths.items():
            text = text.replace(there, here)
        return text

    assert "port 6379\n" in configuration
    configuration = configuration.replace("port 6379\n", f"port {port}\nbind 127.0.0.1\n")
    (folder / "etc/redis.conf").write_text(moved(configuration))
    environment = {"PATH": os.environ["PATH"], "REDIS_PASSWORD": password}
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [moved(word) for word in command], env=environment, cwd=folder, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    try:
        _wait(port, environment, server, folder / "log")
        yield port
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)


def _wait(port: int, environment: dict[str, str], server: subprocess.Popen[bytes], log: Path) -> None:
    """Until it answers whoever has the password."""
    ping = ["redis-cli", "-p", str(port), "ping"]
    environment = {**environment, "REDISCLI_AUTH": environment["REDIS_PASSWORD"]}
    deadline = time.monotonic() + START_S
    while "PONG" not in subprocess.run(ping, env=environment, capture_output=True, text=True, check=False).stdout:
        if server.poll() is not None or time.monotonic() > deadline:
            pytest.fail(log.read_text())
        time.sleep(0.1)
