"""What the check of the ranks' messages says."""

from __future__ import annotations

import pytest

from raygpu.training.distributed.sharded.lockstep import difference

NAMES = ("first", "second", "third")


@pytest.mark.parametrize(
    ("arrived", "expected"),
    [
        ([[2, 1, 0], [2, 0]], "with gradients of other parameters, such as second"),
        ([[2, 0], [2, 1, 0], [2, 0]], "with gradients of other parameters, such as second"),  # a rank in the middle
        ([[2, 1], [1, 2]], "with gradients in another order"),
    ],
)
def test_how_the_gradients_of_ranks_differ(arrived: list[list[int]], expected: str) -> None:
    assert difference(arrived, NAMES) == expected
