"""Measured points that contradict themselves or each other, to be measured again or left out. Pure.

    doubts = contradictions(points, alone)      # {index of a point: the contradiction}: to be measured again
    points = mark_doubtful(points, alone)              # points that stay inconsistent have a doubt, and are not used

alone: samples/s of one training alone, of all its rounds. Three checks, none of which needs a model of the device:

- A throughput found by comparison with one training alone agrees with the throughput of its own windows.
- N trainings at once take no less time than fewer of them, in whichever way they share a device.
- Rounds that differ by a large factor tell nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from statistics import median

from raygpu.planning.profiles import Point

AGREES = 1.4
"""Largest factor between a throughput and that of its own windows: the machine may have become faster or slower since
one training alone was measured."""
TOLERANCE = 1.15
"""Factor by which fewer trainings may seem to take longer than more of them, their spreads apart: some widths suit a
device less."""
ONCE = 1.5
"""Factor in place of TOLERANCE if one of both points was measured once and has no spread."""
WIDE, WIDEST = 2.5, 5.0
"""Upper end over lower end of a gain's interval: above WIDE, a point is measured again; above WIDEST, not used."""


def contradictions(points: Sequence[Point], alone: float) -> dict[int, str]:
    """Return the points in doubt by their indices, with the reasons. Of two that contradict each other, both are
    named."""
    doubts = _alone_in_doubt(points, alone, WIDE)
    for places in _kinds(points, doubts):
        for fewer, more in _reversed(points, places):
            doubts.setdefault(more, _seem(points[fewer], points[more]))
            doubts.setdefault(fewer, _seem(points[fewer], points[more]))
    return doubts


def mark_doubtful(points: Sequence[Point], alone: float) -> list[Point]:
    """Mark the points in doubt, as few as leave the others consistent; of two, the one with the larger claim."""
    doubts = _alone_in_doubt(points, alone, WIDEST)
    for places in _kinds(points, doubts):
        rest = list(places)
        while pairs := _reversed(points, rest):
            count = Counter(place for pair in pairs for place in pair)
            worst = max(count, key=lambda place: (count[place], points[place].gain or 0.0))
            fewer, more = next(pair for pair in pairs if worst in pair)
            doubts[worst] = _seem(points[fewer], points[more])
            rest.remove(worst)
    return [replace(point, doubt=doubts.get(place)) for place, point in enumerate(points)]


def normalise(point: Point, alone: float) -> Point:
    """Replace a point's throughput by its gain times the speed of one training alone, for comparison with other
    numbers.

    A machine that others use is slower for minutes, and one training alone is slower in the same rounds. But the
    throughput is never outside the range of its own windows: if the training alone was disturbed more than the others,
    the gain is too high.
    """
    if point.gain is None or not point.rounds:
        return point
    if is_alone(point):
        return replace(point, samples_per_s=alone)
    return replace(point, samples_per_s=min(max(alone * point.gain, min(point.rounds)), max(point.rounds)))


def is_alone(point: Point) -> bool:
    """Return whether a point is the single training that all others are compared with."""
    return (point.way, point.n) == ("process", 1)


def _alone_in_doubt(points: Sequence[Point], alone: float, widest: float) -> dict[int, str]:
    """Return the points that their own rounds contradict, or whose spread is larger than `widest`, with the reasons."""
    reasons = {place: _disagreement(point, alone, widest) for place, point in enumerate(points)}
    return {place: reason for place, reason in reasons.items() if reason is not None}


def _disagreement(point: Point, alone: float, widest: float) -> str | None:
    if point.gain is None or is_alone(point):
        return None
    if point.spread.width > widest:
        return f"its rounds differ too much to tell: {point.spread.low:.2g}x to {point.spread.high:.2g}x"
    if not point.rounds:
        return None
    implied, low, high = alone * point.gain, min(point.rounds), max(point.rounds)
    if low / AGREES <= implied <= high * AGREES:
        return None
    text = (
        f"a gain of {point.gain:.3g}x would be {implied:,.0f}/s, and its own windows measured {low:,.0f} to {high:,.0f}"
    )
    if not point.references:
        return text
    return f"{text}: one training alone ran at {median(point.references) / alone:.2f} of its usual speed meanwhile"


def _kinds(points: Sequence[Point], doubts: Iterable[int]) -> list[list[int]]:
    """Group the indices of points that can be compared by their numbers; each group by n."""
    kinds: dict[tuple[str, bool], list[int]] = {}
    for place in sorted(range(len(points)), key=lambda place: points[place].n):
        point = points[place]
        if point.gain is not None and place not in doubts:
            kinds.setdefault((point.way, point.compiled), []).append(place)
    return list(kinds.values())


def _reversed(points: Sequence[Point], places: Sequence[int]) -> list[tuple[int, int]]:
    """Return pairs in which more trainings at once took less time than fewer, beyond both spreads; large numbers
    first."""
    pairs = reversed([*combinations(places, 2)])
    return [(fewer, more) for fewer, more in pairs if _takes_less_time(points[more], points[fewer])]


def _takes_less_time(more: Point, fewer: Point) -> bool:
    gain = more.spread.over(fewer.spread)
    once = more.gain_high is None or (fewer.gain_high is None and not is_alone(fewer))
    return more.n > fewer.n and gain.low * fewer.n / more.n > (ONCE if once else TOLERANCE)


def _seem(fewer: Point, more: Point) -> str:
    gains = f"{fewer.gain:.3g}x and {more.gain:.3g}x"
    return f"{more.n} at once seem to take less time than {fewer.n} ({gains} the throughput of one)"
