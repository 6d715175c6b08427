"""The makespan of a queue of jobs on a number of slots: pure, a simulation of what Tune does."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

MOST_SIMULATED = 400
"""Largest number of waiting jobs that are simulated one by one; those before them keep all slots busy."""


def makespan_s(
    running: Sequence[float],
    waiting: Sequence[Sequence[float]],
    slots: int,
    slowdown: Callable[[int], float] = lambda active: 1.0,
) -> float:
    """Return the seconds until all jobs have ended.

    running: seconds that the running jobs still take, at the speed of full slots. waiting: seconds of each further
    job, in blocks: a block begins only when all jobs before it have ended, but for the first one. slowdown: a job's
    time with this number of jobs at once, relative to its time in full slots.
    """
    clock = worked = 0.0
    active = sorted(running)
    slots = max(slots, len(active), 1)
    for number, block in enumerate(waiting):
        if number:
            clock, worked, active = _end(clock, worked, active, slowdown)
        skipped = max(0, len(block) - MOST_SIMULATED)
        if skipped:
            clock += sum(block[:skipped]) / slots * slowdown(slots)
        for seconds in block[skipped:]:
            while len(active) >= slots:
                clock, worked = _pop(clock, worked, active, slowdown)
            heapq.heappush(active, worked + seconds)
    return _end(clock, worked, active, slowdown)[0]


def _pop(clock: float, worked: float, active: list[float], slowdown: Callable[[int], float]) -> tuple[float, float]:
    """Let time go on to the end of the next job, which leaves `active`. worked: work done so far by each slot."""
    count = len(active)
    end = heapq.heappop(active)
    return clock + (end - worked) * slowdown(count), end


def _end(
    clock: float, worked: float, active: list[float], slowdown: Callable[[int], float]
) -> tuple[float, float, list[float]]:
    while active:
        clock, worked = _pop(clock, worked, active, slowdown)
    return clock, worked, active
