"""Stages of a pipeline, against all cuts that there are."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raygpu.planning.pipelines import bubble, cut, fewest_stages

COSTS = st.lists(st.integers(0, 20).map(float), min_size=1, max_size=8)


def largest(costs: list[float], starts: list[int]) -> float:
    return max(sum(costs[start:end]) for start, end in zip(starts, [*starts[1:], len(costs)], strict=True))


def all_cuts(count: int, stages: int) -> list[list[int]]:
    return [[0, *rest] for rest in combinations(range(1, count), stages - 1)]


def test_the_bubble_is_that_of_gpipe() -> None:
    assert bubble(1, 5) == 0
    assert bubble(4, 1) == 0.75
    assert bubble(2, 8) == pytest.approx(1 / 9)
    with pytest.raises(ValueError, match="one of each is the least"):
        bubble(2, 0)


@given(st.integers(1, 6), st.integers(1, 12))
def test_the_bubble_is_the_idle_time_of_a_schedule(stages: int, micro_batches: int) -> None:
    # The forward pass of micro-batch k ends on stage s after s + k + 1 slots: each stage works in m of m + p - 1.
    slots = max(s + k + 1 for s in range(stages) for k in range(micro_batches))
    assert bubble(stages, micro_batches) == pytest.approx(1 - micro_batches / slots)


@given(COSTS, st.data())
def test_no_cut_has_a_smaller_largest_part(costs: list[float], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(costs)))
    starts = cut(costs, stages)
    cuts = all_cuts(len(costs), stages)
    assert starts in cuts
    assert largest(costs, starts) == min(largest(costs, each) for each in cuts)


def test_a_stage_needs_a_unit() -> None:
    with pytest.raises(ValueError, match="3 stages of 2 units"):
        cut([1.0, 1.0], 3)


@given(COSTS, st.integers(0, 40).map(float))
def test_fewer_stages_do_not_fit(memory: list[float], limit: float) -> None:
    fitting = [
        stages
        for stages in range(1, len(memory) + 1)
        if any(largest(memory, each) <= limit for each in all_cuts(len(memory), stages))
    ]
    assert fewest_stages(memory, limit) == (min(fitting) if fitting else None)
