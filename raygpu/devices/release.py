"""Waiting until the GPU memory of processes that left is free again: the driver takes it back only after their end.

Look before the processes end, wait afterwards:

    held = holding(gpu.uuid, [pid])
    ...                               # the process ends
    released = wait_until_released(held, timeout_s=30)

NVML's figure of the whole device says nothing beside a neighbour that goes on computing; its list of processes does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from raygpu.devices import nvml

POLL_S = 0.1
SHORTEST_S = 0.001
SETTLED_S = 0.5
# Pages and rounding: of what was held, this much counts as all of it.
ENOUGH = 0.9
NOTICEABLE_GIB = 0.05


@dataclass(frozen=True, slots=True)
class Holding:
    """What processes held on a GPU when it was looked at."""

    uuid: str
    pids: frozenset[int]
    listed: bool
    """Whether NVML lists all of them. In a container it may list none, or the host's pids."""
    gib: float | None
    """What they hold together, where that is known."""
    free_gib: float | None
    """Of the device."""


@dataclass(frozen=True, slots=True)
class Release:
    """How the wait ended."""

    outcome: Literal["released", "timed out", "not told"]
    """Not told: NVML tells neither of processes nor of free memory, so there was nothing to wait for."""
    waited_s: float
    by: Literal["processes", "free memory"] | None
    """What it was seen by."""


def holding(uuid: str, pids: Collection[int], expected_gib: float | None = None) -> Holding:
    """What these processes hold now, while they live.

    expected_gib: what they hold together (torch's reserve and the context), for where NVML does not tell.
    """
    figures = nvml.process_memory(uuid) or {}
    listed = bool(pids) and all(pid in figures for pid in pids)
    told = [figures.get(pid) for pid in pids] if listed else []
    known = [gib for gib in told if gib is not None]
    room = nvml.memory(uuid)
    return Holding(
        uuid,
        frozenset(pids),
        listed,
        gib=sum(known) if known and len(known) == len(told) else expected_gib,
        free_gib=room.free_gib if room is not None else None,
    )


def wait_until_released(
    held: Holding,
    timeout_s: float = 30.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Release:
    """Wait until the processes are off NVML's list; else until as much memory is free as they held.

    Where it is not known how much that was, until more is free and that has stood still for half a second.
    """
    began_s = clock()
    rise = _Rise(held, clock)
    by: Literal["processes", "free memory"] | None = None
    while True:
        figures = nvml.process_memory(held.uuid) if held.listed else None
        if figures is not None:
            by, released = "processes", not held.pids & figures.keys()
        else:
            seen = rise.done()
            by, released = (None, False) if seen is None else ("free memory", seen)
        waited_s = clock() - began_s
        if by is None:
            return Release("not told", waited_s, None)
        if released or waited_s >= timeout_s:
            return Release("released" if released else "timed out", waited_s, by)
        sleep(max(SHORTEST_S, min(POLL_S, timeout_s - waited_s)))


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


class _Rise:
    """The device's free memory on its way up."""

    def __init__(self, held: Holding, clock: Callable[[], float]) -> None:
        self._held = held
        self._clock = clock
        self._free_gib: float | None = None
        self._since_s = 0.0

    def done(self) -> bool | None:
        """Whether what was held is free; None where the device does not tell."""
        room = nvml.memory(self._held.uuid)
        if room is None or self._held.free_gib is None:
            return None
        risen_gib = room.free_gib - self._held.free_gib
        if self._held.gib is not None:
            return risen_gib >= ENOUGH * self._held.gib
        if self._free_gib is None or abs(room.free_gib - self._free_gib) > NOTICEABLE_GIB:
            self._free_gib, self._since_s = room.free_gib, self._clock()
        return risen_gib > NOTICEABLE_GIB and self._clock() - self._since_s >= SETTLED_S
