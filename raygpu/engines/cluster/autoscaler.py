"""End the autoscaler of a local Ray, which has nothing to scale, so that `ray.shutdown` does not wait for it.

On SIGTERM the autoscaler's process goes on for more than a second. `ray.shutdown` waits that long, and kills it then.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil

PROGRAM, PACKAGE = "monitor.py", "autoscaler"
"""Name of the autoscaler's program, and of the folder of Ray that it lies below."""


def kill() -> list[int]:
    """Kill the autoscaler of the Ray that this process has started; return its pid, or nothing without one."""
    killed = []
    for process in psutil.Process().children():
        with suppress(psutil.Error):  # it has just ended
            if any(_is_program(word) for word in process.cmdline()[:4]):
                process.kill()
                killed.append(process.pid)
    return killed


def _is_program(word: str) -> bool:
    path = Path(word)
    return path.name == PROGRAM and PACKAGE in path.parts and "ray" in path.parts
