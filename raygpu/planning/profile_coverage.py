"""Decide whether a kept profile answers what a sweep asks, or a measurement would tell more. Pure.

    ways = lacking(profile, {"process": [1, 2, 4, 8], "fused": [8]}, room)
    ended_by_time(profile, ways, seconds=15.0)      # a probe of 15 s would end where an earlier one did

What ended one measurement does not end the next: a longer sweep has more time, and memory may be free again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile

from raygpu.config.sections import Way
from raygpu.planning.cost_model import FreeMemory, most_that_fit
from raygpu.planning.profiles import Point, Profile

FURTHER = 2.0
"""Ratio of a probe's time to an earlier one's from which it measures again what time had ended."""


LEAST: Mapping[Way, int] = {"mps": 2, "split": 2, "threads": 2}
"""Smallest number of trainings at which a way differs from a single training."""
MOST: Mapping[Way, int] = {"mps": 48, "threads": 8}
"""Largest number of trainings for a way: MPS accepts no more clients, and `threads` is not worth a longer search."""


def tried(ways: Iterable[Way], numbers: Iterable[int], most: int) -> dict[Way, list[int]]:
    """Return the numbers of trainings at once, none above `most`, at which a measurement tries each of these ways."""
    within = sorted(takewhile(lambda n: n <= most, numbers))
    by_way = {way: [n for n in within if LEAST.get(way, 1) <= n <= MOST.get(way, n)] for way in ways}
    return {way: of for way, of in by_way.items() if of}


def lacking(profile: Profile, numbers: Mapping[Way, Sequence[int]], room: FreeMemory) -> list[Way]:
    """Return the ways of which a profile does not tell enough.

    numbers: ways to choose between, each with the numbers of trainings at once that a measurement would try. room:
    memory that is free now: a measurement would try no more trainings than fit.
    """
    profile = profile.with_free(room.device_gib)
    most = {way: most_that_fit(profile, way, room) for way in numbers}
    reach = {way: max((n for n in of if n <= most[way]), default=min(of)) for way, of in numbers.items()}
    return [way for way, n in reach.items() if not profile.tells_of(way, n)]


def fibonacci() -> Iterator[int]:
    """Yield 1, 2, 3, 5, 8, 13, 21, 34 ... without end."""
    low, high = 1, 2
    while True:
        yield low
        low, high = high, low + high


def array_outdoes(points: Iterable[Point], members: int, processes: int, worth: float = 1.0) -> bool:
    """Return whether a measured array of so many members at most does more than processes can.

    At best no process takes work from the others. worth: ratio of speeds from which arrays are taken.
    """
    rates = {(p.way, p.n): p.samples_per_s for p in points if p.samples_per_s and not p.compiled}
    array = max((rate for (way, n), rate in rates.items() if way == "fused" and n <= members), default=0.0)
    alone = rates.get(("process", 1))
    return alone is not None and array > worth * processes * alone


def ended_by_time(profile: Profile, ways: Sequence[Way], seconds: float) -> bool:
    """Return whether time ended an earlier probe of each of these ways, and a probe of `seconds` gets little
    further."""
    return all(FURTHER * profile.ended_s.get(way, 0.0) > seconds for way in ways)
