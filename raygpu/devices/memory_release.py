"""Wait until the driver has freed the GPU memory of processes that have ended.

    wait_for_departed(gpu.uuid, needed_gib=4.0)

Beside a neighbour that goes on computing, only NVML's list of processes shows this; the device's free memory does not.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from raygpu.devices import nvml

TIMEOUT_S = 30.0
POLL_S = 0.1
SHORTEST_S = 0.001
SETTLED_S = 0.5
NOTICEABLE_GIB = 0.05


def wait_for_departed(uuid: str, needed_gib: float) -> None:
    """Wait while processes that have ended still hold memory of a GPU. Call it once this process computes there.

    NVML's list of processes decides if it has this process: its pids are then this machine's. Otherwise, as in a
    container, the wait ends once `needed_gib` are free, or once the free memory has not changed for SETTLED_S seconds:
    neighbours then hold the rest. Without either figure there is no wait, and never one of more than TIMEOUT_S.
    """
    began_s = time.monotonic()
    free_gib, since_s = -1.0, began_s
    while True:
        figures = nvml.process_memory(uuid) or {}
        room = nvml.memory(uuid)
        if os.getpid() in figures:
            released = all(_lives(pid) for pid in figures)
        elif room is None:
            return
        else:
            if abs(room.free_gib - free_gib) > NOTICEABLE_GIB:
                free_gib, since_s = room.free_gib, time.monotonic()
            released = room.free_gib >= needed_gib or time.monotonic() - since_s >= SETTLED_S
        left_s = began_s + TIMEOUT_S - time.monotonic()
        if released or left_s <= 0:
            return
        time.sleep(max(SHORTEST_S, min(POLL_S, left_s)))


def _lives(pid: int) -> bool:
    """Return whether a process runs; a zombie that only waits for its parent does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in ("Z", "X")
