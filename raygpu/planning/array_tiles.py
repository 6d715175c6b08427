"""The cut of an array's members into tiles, and whether compiling their step repays: pure, from measured times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from raygpu.planning.scaling_laws import Affine

LADDER = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Widths to measure."""
GOOD_ENOUGH = 0.97
"""Share of the best throughput that suffices for a narrower tile, since it needs less memory."""
COMPILED_SPEEDUP = 2.0
"""Smallest speedup by compiling, in the records of `experiments.benchmarks.fused_throughput`."""
LOAD_S = 0.1
"""Seconds to load a kept step, and to compare it with the eager one."""
LEAST_S = 1.0
"""Minimum remaining training time, in seconds, for which a step is compiled at all, if only for later sweeps."""
SIZES_PER_OCTAVE = 4
"""Number of compiled widths from one power of two to the next, so that one kept step serves arrays of about a size."""
IDLE = 1.25
"""Width of a kept step, over the number of members, above which it does not serve them."""
COMPILE_S = {"cpu": 10.0, "cuda": 40.0}
"""Seconds to compile a step, on two cores of 2.5 GHz."""
FIRST_COMPILE_S = {"cpu": 15.0, "cuda": 0.0}
"""Additional seconds for the first step on a machine: torch tests the C++ compiler, and keeps the answers."""

Compiling = Literal["beside", "later", "now", "never"]


@dataclass(frozen=True, slots=True)
class TilePlan:
    """A tile of an array: `members` in `width` rows; rows without a member repeat the first one's work."""

    members: range
    width: int


def widest(count: int, num_bytes: Mapping[int, int], limit: int | None) -> int:
    """Return the widest tile, up to `count`, whose memory stays below `limit` bytes; memory is affine in the width.

    num_bytes: measured memory by width; with fewer than two measurements, `count` is returned.
    """
    if limit is None or len(num_bytes) < 2:
        return count
    (low, low_bytes), (high, high_bytes) = min(num_bytes.items()), max(num_bytes.items())
    slope = (high_bytes - low_bytes) / (high - low)
    if slope <= 0:
        return count
    return max(1, min(count, math.floor(low + (limit - low_bytes) / slope)))


def best_width(step_s: Mapping[int, float], most: int) -> int:
    """Return the narrowest measured width, up to `most`, whose throughput is within GOOD_ENOUGH of the best."""
    throughput = {width: width / seconds for width, seconds in step_s.items() if width <= most}
    best = max(throughput.values())
    return min(width for width, rate in throughput.items() if rate >= GOOD_ENOUGH * best)


def level(count: int, width: int) -> int:
    """Return the width at which tiles are equally full: 100 members at 64 are two tiles of 50."""
    return math.ceil(count / math.ceil(count / width))


def repays(device: str, eager_s: float, *, first: bool = False) -> bool:
    """Return whether steps that take `eager_s` seconds in all repay being compiled.

    first: whether nothing was compiled on this machine so far.
    """
    return eager_s * (1 - 1 / COMPILED_SPEEDUP) > COMPILE_S[device] + first * FIRST_COMPILE_S[device]


def padded(count: int) -> int:
    """Return the width to compile for so many members: 1 to 8, then 10, 12, 14, 16, 20, 24 ...

    The rows without a member cost at most a fifth of the array's time, and on the mean a tenth.
    """
    step = max(1, 2 ** ((count - 1).bit_length() - 1) // SIZES_PER_OCTAVE)
    return math.ceil(count / step) * step


def serves(width: int, count: int) -> bool:
    """Return whether a step compiled for `width` members serves `count` of them, at the cost of some idle rows."""
    return count <= width <= max(padded(count), IDLE * count)


def load_repays(eager_s: float) -> bool:
    """Return whether steps that take `eager_s` seconds in all repay loading a kept step."""
    return eager_s * (1 - 1 / COMPILED_SPEEDUP) > LOAD_S


def compiling(device: str, eager_s: float, *, keeps: bool, first: bool, earlier_s: float = 0.0) -> Compiling:
    """Return when to compile a step that is not kept yet, of training that takes `eager_s` seconds without it.

    beside: while the array trains, with a share of the processors. later: once the sweep's training has ended, for
    later sweeps. now: before it trains. keeps: whether compiled steps are kept; they are compiled in a process of their
    own. first: whether nothing was compiled on this machine so far. earlier_s: seconds of such training in earlier
    arrays of this sweep. How many will follow is not known, so a sweep pays for a step once the time that it would have
    saved so far repays it, as whoever buys skis once their rent has come to their price.
    """
    pays = repays(device, eager_s + earlier_s, first=first)
    if not keeps:
        return "now" if pays else "never"
    if eager_s < LEAST_S:
        return "never"
    return "beside" if pays else "later"


def covered(step_s: Mapping[int, float], count: int) -> dict[int, float] | None:
    """Return kept seconds of a step for the choice of a width up to `count`; None if they do not reach that far.

    step_s: by measured width. The step of `count` members itself is interpolated, for it is linear in the width, or
    extrapolated by at most a quarter.
    """
    times = {width: seconds for width, seconds in sorted(step_s.items()) if width <= count}
    if count in times or (times and max(times) >= LADDER[-1]):
        return times
    wider = min((width for width in step_s if width > count), default=None)
    if wider is None and (not times or len(times) < 2 or IDLE * max(times) < count):
        return None
    if not times:
        return None
    low = max(times)
    if wider is None:
        return times | {count: Affine.fit(times).at(count)}
    return times | {count: times[low] + (step_s[wider] - times[low]) * (count - low) / (wider - low)}


def arrange(count: int, width: int, eager: Affine, compiled: Mapping[int, float]) -> list[TilePlan]:
    """Cut `count` members into tiles of `width` and a last one for the rest.

    eager: seconds of a step by its width. compiled: seconds of a step at the compiled widths. A rest is filled up to a
    compiled width if that costs less than an eager step of its own width.
    """
    parts = [TilePlan(range(start, start + width), width) for start in range(0, count - count % width, width)]
    rest = range(count - count % width, count)
    if rest:
        fitting = {w: seconds for w, seconds in compiled.items() if w >= len(rest)}
        filled = min(fitting, default=len(rest))
        if filled != len(rest) and fitting[filled] >= eager.at(len(rest)):
            filled = len(rest)
        parts.append(TilePlan(rest, filled))
    return parts


def next_rung(count: int, compiled: Sequence[int]) -> int | None:
    """Return the narrowest half, quarter ... of the smallest compiled width that holds `count`; None if none does."""
    width = min(compiled)
    while width // 2 >= count and width > 1:
        width //= 2
    return width if width < min(compiled) else None
