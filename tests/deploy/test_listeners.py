"""What a local run opens to the network: nothing."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

PROJECT = """
import time, raygpu

def train(config):
    for epoch in range(200):
        time.sleep(0.1)
        raygpu.report(score=epoch)
"""
CONFIGURATION = """
experiment = "waiting:train"
trials = 2
metric = "score"
direction = "max"
[gpu]
fraction = 0.5
[space]
x = 1
"""
NAMES = {"gcs_server", "raylet", "ray::"}
"""Of processes whose listeners have to be seen, or nothing was tried."""


@pytest.fixture
def sweep(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A sweep on this machine whose trials run."""
    (tmp_path / "waiting.py").write_text(PROJECT)
    (tmp_path / "waiting.toml").write_text(CONFIGURATION)
    process = subprocess.Popen(
        [sys.executable, "-m", "raygpu.sweep", "waiting.toml"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=120)


def test_every_listener_of_a_local_sweep_is_on_loopback(sweep: subprocess.Popen[str]) -> None:
    deadline, seen = time.monotonic() + 120, set[tuple[str, str]]()
    while not all(any(name.startswith(wanted) for name, _ in seen) for wanted in NAMES):
        assert sweep.poll() is None, sweep.stdout and sweep.stdout.read()
        assert time.monotonic() < deadline, seen
        seen |= listeners(psutil.Process(sweep.pid))
        time.sleep(0.2)
    time.sleep(2)  # for those that begin to listen last
    seen |= listeners(psutil.Process(sweep.pid))
    assert not {(name, address) for name, address in seen if address not in ("127.0.0.1", "::1", "::ffff:127.0.0.1")}


def listeners(parent: psutil.Process) -> set[tuple[str, str]]:
    """The name and address of each listener of a process and its children."""
    found = set()
    for process in [parent, *parent.children(recursive=True)]:
        try:
            name = (process.cmdline() or [""])[0]
            listening = [c for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
        except psutil.Error:
            continue
        found |= {(Path(name).name, connection.laddr.ip) for connection in listening}
    return found
