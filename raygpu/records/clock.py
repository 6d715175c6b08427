"""The time that a command has been running, and the seconds of its stages."""

from __future__ import annotations

import os
import time
from pathlib import Path

_called: list[float] = []
"""Moment at which a command was called from Python, by the monotonic clock; empty if this process is the command."""


def begin_call(age_s: float = 0.0) -> None:
    """Let the command begin now, and not with this process: a function of raygpu has been called.

    age_s: seconds since a command that began in another process.
    """
    _called[:] = [time.monotonic() - age_s]


def command_age_s() -> float:
    """Return the seconds since the command was typed, its interpreter's start included, or since it was called.

    Linux: field 22 of /proc/self/stat, see proc(5).
    """
    if _called:
        return time.monotonic() - _called[0]
    after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started_s = int(after_name[19]) / os.sysconf("SC_CLK_TCK")
    return float(Path("/proc/uptime").read_text().split()[0]) - started_s


class Stages:
    """Seconds of a command's stages, one after the other from its beginning."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._ended = 0.0

    def end(self, stage: str) -> None:
        """Note that a stage ends now; the next one begins."""
        now = command_age_s()
        self.seconds[stage] = now - self._ended
        self._ended = now

    def rounded(self) -> dict[str, float]:
        """Return the seconds by stage for a file that a person reads."""
        return {stage: round(seconds, 2) for stage, seconds in self.seconds.items()}
