"""The cut of an array's members into tiles, and whether compiling their step repays: pure, from measured times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raygpu.planning.scaling_laws import Affine

LADDER = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Widths to measure."""
GOOD_ENOUGH = 0.97
"""Share of the best throughput that suffices for a narrower tile, since it needs less memory."""
COMPILED_SPEEDUP = 2.0
"""Smallest speedup by compiling, in the records of `experiments.benchmarks.fused_throughput`."""
COMPILE_S = {"cpu": 10.0, "cuda": 40.0}
"""Seconds to compile a step, on two cores of 2.5 GHz."""
FIRST_COMPILE_S = {"cpu": 15.0, "cuda": 0.0}
"""Additional seconds for the first step on a machine: torch tests the C++ compiler, and keeps the answers."""


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
