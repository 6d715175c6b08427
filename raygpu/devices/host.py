"""This machine's processors and memory, containers' limits counted."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from raygpu.packing import Node

KIB_PER_GIB = 2**20
CGROUP = Path("/sys/fs/cgroup")


def node(num_gpus: int) -> Node:
    """This machine as a plan sees it, with one simulated GPU where it has none."""
    return Node(num_cpus=num_cpus(), num_gpus=max(1, num_gpus), memory_gib=available_memory_gib())


def num_cpus() -> int:
    """The CPUs that this process may use: its affinity, and the quota of its control group (cgroup v2)."""
    allowed = len(os.sched_getaffinity(0))
    try:
        quota, period = (CGROUP / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return allowed
    return allowed if quota == "max" else max(1, min(allowed, int(quota) // int(period)))


def cpu_name() -> str:
    """The processor's model."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, model = line.partition(":")
        if name.strip() in ("model name", "Model"):
            return model.strip()
    return platform.machine()


def available_memory_gib() -> float:
    """Host memory that can still be taken, bounded by what the control group (cgroup v2) leaves."""
    available = _meminfo_gib("MemAvailable")
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
        current = int((CGROUP / "memory.current").read_text()) - _page_cache()
    except (OSError, ValueError):
        return available
    return available if limit == "max" else min(available, (int(limit) - current) / 2**30)


def _page_cache() -> int:
    """Bytes of files that the kernel keeps in memory and gives up at once: counted as used, and free."""
    for line in (CGROUP / "memory.stat").read_text().splitlines():
        name, _, amount = line.partition(" ")
        if name == "inactive_file":
            return int(amount)
    return 0


def _meminfo_gib(field: str) -> float:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == field:
            return int(rest.split()[0]) / KIB_PER_GIB
    raise OSError(f"/proc/meminfo has no {field}")
