"""Stages of a pipeline over micro-batches: how long devices wait, and where a model is best cut. Pure.

starts = cut([unit.seconds for unit in units], stages=2)      # [0, 3]: the second stage begins with unit 3
waiting = bubble(stages=2, micro_batches=8)                   # 1/9 of the time
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from raygpu.errors import BadInput


def bubble(stages: int, micro_batches: int) -> float:
    """Return the share of an optimizer step in which a device waits, if all stages take equally long.

    (p - 1) / (m + p - 1) for p stages and m micro-batches: Y. Huang et al., GPipe: Efficient Training of Giant Neural
    Networks using Pipeline Parallelism, NeurIPS 2019, section 2.3. 1F1B waits as long, and keeps fewer activations.
    """
    if stages < 1 or micro_batches < 1:
        raise ValueError(f"{stages} stages and {micro_batches} micro-batches; one of each is the least")
    return (stages - 1) / (micro_batches + stages - 1)


@dataclass(frozen=True, slots=True)
class Unit:
    """A piece of a model, from the beginning of one submodule to that of the next one."""

    name: str
    """Name of the submodule with which a stage can begin; the first unit begins with the model."""
    seconds: float
    """Seconds of its forward and backward pass."""
    memory_gib: float
    """Its parameters with gradients and the optimizer's buffers, and what autograd saves of all samples at once."""


def balanced(found: Sequence[Unit], stages: int) -> tuple[str, ...]:
    """Return the names with which the stages 1, 2 ... begin so that the slowest stage is as fast as possible.

    Raises BadInput if there are fewer units than stages.
    """
    if not 2 <= stages <= len(found):
        raise BadInput(
            f"stages: read {stages}; the model has {len(found)} submodules that can begin a stage, so"
            f" {len(found)} stages are the most, and 2 the fewest"
        )
    return tuple(found[start].name for start in cut([unit.seconds for unit in found], stages)[1:])


def cut(costs: Sequence[float], stages: int) -> list[int]:
    """Return the starts of contiguous parts, none empty, of which the largest is as small as possible.

    costs: of each unit, in the order of execution, 0 at least. Raises ValueError if there are fewer units than stages.
    """
    if not 1 <= stages <= len(costs):
        raise ValueError(f"{stages} stages of {len(costs)} units; each stage needs one at least")
    sums = [0.0, *accumulate(costs)]
    # best[end]: the smallest largest part of the units before `end`; origins: where the last of these parts begins.
    best = list(sums)
    origins: list[list[int]] = []
    for part in range(2, stages + 1):
        found, starts = [math.inf] * len(sums), [0] * len(sums)
        for end in range(part, len(sums)):
            for start in range(end - 1, part - 2, -1):
                last = sums[end] - sums[start]
                largest = max(best[start], last)
                if largest < found[end]:
                    found[end], starts[end] = largest, start
                if last > found[end]:  # still larger parts to come
                    break
        best = found
        origins.append(starts)
    begins, end = [], len(costs)
    for starts in reversed(origins):
        end = starts[end]
        begins.append(end)
    return [0, *reversed(begins)]


def fewest_stages(memory_gib: Sequence[float], limit_gib: float) -> int | None:
    """Return the smallest number of contiguous stages whose memory fits a device; None if a single unit does not.

    memory_gib: of each unit, in the order of execution. limit_gib: of a device.
    """
    if any(memory > limit_gib for memory in memory_gib):
        return None
    stages, filled = 1, 0.0
    for memory in memory_gib:
        if filled + memory > limit_gib:
            stages, filled = stages + 1, 0.0
        filled += memory
    return stages
