"""Waiting until the GPU memory of processes that left is free again: the driver takes it back only after their end.

    released = wait_for_departed(gpu.uuid, needed_gib=4.0, timeout_s=30)

NVML's figure of the whole device says nothing beside a neighbour that goes on computing; its list of processes does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from raygpu.devices import nvml

POLL_S = 0.1
SHORTEST_S = 0.001
SETTLED_S = 0.5
NOTICEABLE_GIB = 0.05


@dataclass(frozen=True, slots=True)
class Release:
    """How the wait ended."""

    outcome: Literal["released", "timed out", "not told"]
    """Not told: NVML tells neither of processes nor of free memory, so there was nothing to wait for."""
    waited_s: float
    by: Literal["processes", "free memory"] | None
    """What it was seen by."""


def wait_for_departed(
    uuid: str,
    needed_gib: float,
    timeout_s: float = 30.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Release:
    """Wait while processes that have ended still hold memory of this GPU. Call it once this process computes there.

    NVML's list is believed if it has this process: its pids are then this machine's. Where it is not, as in a
    container, until `needed_gib` are free, or what is free stands still: neighbours then hold the rest.
    """
    began_s = clock()
    free_gib, since_s = -1.0, began_s
    by: Literal["processes", "free memory"]
    while True:
        figures = nvml.process_memory(uuid) or {}
        room = nvml.memory(uuid)
        if os.getpid() in figures:
            by, released = "processes", all(_lives(pid) for pid in figures)
        elif room is None:
            return Release("not told", clock() - began_s, None)
        else:
            if abs(room.free_gib - free_gib) > NOTICEABLE_GIB:
                free_gib, since_s = room.free_gib, clock()
            by, released = "free memory", room.free_gib >= needed_gib or clock() - since_s >= SETTLED_S
        waited_s = clock() - began_s
        if released or waited_s >= timeout_s:
            return Release("released" if released else "timed out", waited_s, by)
        sleep(max(SHORTEST_S, min(POLL_S, timeout_s - waited_s)))


def _lives(pid: int) -> bool:
    """Not gone, and no zombie that only waits for its parent."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in ("Z", "X")
