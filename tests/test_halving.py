from __future__ import annotations

import pytest

from raygpu.halving import rungs


@pytest.mark.parametrize(
    ("grace", "reduction", "epochs", "expected"),
    [
        (2, 3, 20, [2, 6, 18]),
        (1, 2, 8, [1, 2, 4]),
        (5, 3, 5, []),
        (1, 1.5, 6, [1, 2, 3, 4]),
        (1, 2.5, 20, [1, 3, 7, 16]),
        (1, 4, 17, [1, 4, 16]),
    ],
)
def test_rungs(grace: int, reduction: float, epochs: int, expected: list[int]) -> None:
    assert rungs(grace, reduction, epochs) == expected
