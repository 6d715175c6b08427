"""Room for more trainings on a GPU: pure, from a profile, the free memory and what runs there now.

    room = room_for(need_of(profile, "process"), running=3, free=FreeMemory(host_gib=100.0, device_gib=12.5))

The limits are those of a sweep's plan: the number at once up to which throughput gains, and the memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from raygpu.config.sections import Way
from raygpu.planning.cost_model import FreeMemory, gaining, trainings_that_fit
from raygpu.planning.estimates import Estimates
from raygpu.planning.profiles import Profile
from raygpu.planning.training_need import Need

Bound = Literal["memory", "gain", "compute mode"]


def need_of(profile: Profile, way: Way) -> Need | None:
    """Return the need of a profile's training in one way; None if that way was not measured."""
    numbers = {p.n for p in profile.of(way) if p.samples_per_s}
    if not numbers:
        return None
    most, end = gaining(profile, way)
    several = len(numbers) > 1
    return Need(
        way,
        profile.subject.device,
        profile.subject.device_gib,
        most if several else None,
        end if several else "",
        profile.memory(way, "host_gib"),
        profile.memory(way, "device_gib"),
    )


def needs_of_sweep(
    estimates: Estimates, devices: Sequence[str], alone: Way, together: Way
) -> dict[tuple[str, bool], Need]:
    """Return the needs of a sweep's trainings by device type, and by whether they train together in one process.

    alone, together: the ways of both kinds. A rough estimate, which is no profile, gives none.
    """
    needs = {}
    for device in devices:
        profile = estimates.on(device) or estimates.kept
        if profile is None or not profile.measured_at:
            continue
        for shared, way in ((False, alone), (True, together)):
            need = need_of(profile, way) or (need_of(profile, "process") if way == "mps" else None)
            if need is not None:
                needs[device, shared] = need
    return needs


@dataclass(frozen=True, slots=True)
class Room:
    """The number of further trainings that a GPU has room for; None for what is not known."""

    more: int | None
    """The smaller of both numbers."""
    by_memory: int | None
    by_gain: int | None
    bound: Bound | None
    """The limit that binds; None if nothing is known."""
    reason: str
    """The limit as text for a person, or why nothing is known."""


def room_for(need: Need, running: int, free: FreeMemory, refusal: str | None = None) -> Room:
    """Return how many further trainings fit the free memory and still gain.

    running: trainings on the device now, each other process counted as one. refusal: why several processes cannot share
    the device; None if they can. A training that does not fit at all makes 0, never less.
    """
    by_gain = None if need.most is None else max(0, need.most - running)
    memory = list(_by_memory(need, free, running=running > 0))
    by_memory = min((count for count, _ in memory), default=None)
    bounds: list[tuple[int, Bound, str]] = [(count, "memory", text) for count, text in memory]
    if by_gain is not None:
        bounds.append((by_gain, "gain", need.end))
    if refusal is not None and need.way in ("process", "mps"):
        bounds.append((max(0, 1 - running), "compute mode", refusal))
    if not bounds:
        return Room(None, None, None, None, "its profile has no memory, and one number alone")
    more, bound, reason = min(bounds, key=lambda each: each[0])
    return Room(more, by_memory, by_gain, bound, reason)


def _by_memory(need: Need, free: FreeMemory, *, running: bool) -> Iterable[tuple[int, str]]:
    """Yield how many more trainings each memory holds, with the figures as text."""
    parts = (("device", need.device_line, free.device_gib), ("host", need.host_line, free.host_gib))
    for name, line, free_gib in parts:
        if line is not None and line.each > 0 and free_gib is not None:
            text = f"{line.each:.2f} GiB each, {free_gib:.1f} GiB of {name} memory free"
            yield max(0, trainings_that_fit(line, free_gib, running=running)), text
