"""The time that the command has been running, its interpreter's start included."""

from __future__ import annotations

import os
from pathlib import Path


def process_age_s() -> float:
    """Return the seconds since this process was started (Linux: field 22 of /proc/self/stat, see proc(5))."""
    after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started_s = int(after_name[19]) / os.sysconf("SC_CLK_TCK")
    return float(Path("/proc/uptime").read_text().split()[0]) - started_s
