"""The processes of a command: signals to them, and to a worker itself, and what they open to the network."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil

from raygpu.engines.cluster.ray_environment import ON_LOOPBACK

LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")


def terminate_all(process: subprocess.Popen[str]) -> None:
    """Send SIGTERM to a command's process and to all that it started, as `systemctl stop` does."""
    for each in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
        each.send_signal(signal.SIGTERM)


def as_users_have_it() -> dict[str, str]:
    """Return the environment for a command whose Ray listens where a user's does."""
    return {name: value for name, value in os.environ.items() if name != ON_LOOPBACK}


def listeners(command: int) -> set[tuple[str, str]]:
    """Return the name and address of each listener of a command's process, by its pid, and of all that it started."""
    found = set()
    for process in [psutil.Process(command), *psutil.Process(command).children(recursive=True)]:
        try:
            name = Path((process.cmdline() or [""])[0]).name
            listening = [c for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
        except psutil.Error:
            continue
        found |= {(name, connection.laddr.ip) for connection in listening}
    return found


def die_once(mark: Path) -> None:
    """Kill this process, once: unless the mark is there."""
    if not mark.exists():
        mark.touch()
        time.sleep(2.0)  # the driver takes in the last checkpoint
        os.kill(os.getpid(), signal.SIGKILL)
