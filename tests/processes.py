"""Signals to the processes of a command."""

from __future__ import annotations

import signal
import subprocess

import psutil


def terminate_all(process: subprocess.Popen[str]) -> None:
    """Send SIGTERM to a command's process and to all that it started, as `systemctl stop` does."""
    for each in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
        each.send_signal(signal.SIGTERM)
