"""Limits of Linux control groups on this process: its own group's and those of the groups above, of cgroup v2 and v1.

A container, a systemd slice or a batch system sets them; each that is there binds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
"""File with the groups of this process, a line `number:controllers:path` each; that of v2 names no controllers."""

NO_LIMIT = 2**60
"""Bytes from which on a limit is none: cgroup v1 has a number for it."""


def cpu_quota() -> float | None:
    """Return the smallest quota in CPUs; None without one."""
    quotas = []
    for folder in _folders("cpu"):
        with suppress(OSError, ValueError):
            if (folder / "cpu.max").exists():
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            if quota != "max" and int(quota) > 0:
                quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def limit_bytes() -> int | None:
    """Return the smallest limit of memory; None without one."""
    limits = []
    for folder in _folders("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):  # not there, or max
                limits.append(int((folder / name).read_text()))
    return min((limit for limit in limits if limit < NO_LIMIT), default=None)


def available_bytes() -> int | None:
    """Return the smallest rest of a memory limit; None without one.

    Cached files that the kernel gives up at once count as available.
    """
    rests = []
    for folder in _folders("memory"):
        with suppress(OSError, ValueError):
            if (folder / "memory.max").exists():
                limit, used, cached = "memory.max", "memory.current", "inactive_file"
            else:
                limit, used, cached = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            most = (folder / limit).read_text().strip()
            if most != "max":
                statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                rests.append(int(most) - int((folder / used).read_text()) + int(statistics.get(cached, 0)))
    return min(rests, default=None)


def _folders(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's groups and of those above them; some may not be there.

    In a container, the path of its group may be that of the host, and its own group is the root.
    """
    with suppress(OSError):
        for line in MEMBERSHIP.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            group = PurePosixPath(path.lstrip("/"))
            for each in (group, *group.parents):
                yield (ROOT / controller if controllers else ROOT) / each
