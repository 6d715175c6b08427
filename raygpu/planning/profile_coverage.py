"""Decide whether a kept profile answers what a sweep asks, or a measurement would tell more. Pure.

    ways = lacking(profile, {"process": 8, "fused": 8}, room)
    ended_by_time(profile, ways, seconds=15.0)      # a probe of 15 s would end where an earlier one did

What ended one measurement does not end the next: a longer sweep has more time, and memory may be free again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from raygpu.config.sections import Way
from raygpu.planning.cost_model import FreeMemory, most_that_fit
from raygpu.planning.profiles import Point, Profile

FURTHER = 2.0
"""Ratio of a probe's time to an earlier one's from which it measures again what time had ended."""


def lacking(profile: Profile, reach: Mapping[Way, int], room: FreeMemory) -> list[Way]:
    """Return the ways of which a profile does not tell enough.

    reach: ways to choose between, each with the number of trainings at once up to which it is to be measured. room: all
    memory of a device; no more trainings have to be measured than it holds.
    """
    numbers = {way: min(n, most_that_fit(profile, way, room)) for way, n in reach.items()}
    return [way for way, n in numbers.items() if not profile.tells_of(way, n)]


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
