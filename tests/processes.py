"""Signals to the processes of a command, and to a worker itself."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil


def terminate_all(process: subprocess.Popen[str]) -> None:
    """Send SIGTERM to a command's process and to all that it started, as `systemctl stop` does."""
    for each in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
        each.send_signal(signal.SIGTERM)


def die_once(mark: Path) -> None:
    """Kill this process, once: unless the mark is there."""
    if not mark.exists():
        mark.touch()
        time.sleep(2.0)  # the driver takes in the last checkpoint
        os.kill(os.getpid(), signal.SIGKILL)
