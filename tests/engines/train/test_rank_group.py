"""Which device each rank of a production training has, as its workers tell each other."""

from __future__ import annotations

import pytest

from raygpu.engines.train.rank_group import _placed


@pytest.mark.parametrize(
    ("told", "count", "placed"),
    [
        ([0, 1], 2, [0, 1]),
        ([1, None], 2, [1, 0]),
        ([None, 0, None], 4, [1, 0, 2]),
        ([0, 0, None], 1, [0, 0, 0]),
        ([None, None], 2, [0, 1]),
    ],
)
def test_a_node_that_joined_later_takes_the_place_of_a_lost_one(
    told: list[int | None], count: int, placed: list[int]
) -> None:
    assert _placed(told, count) == placed
