"""Comparison of the numbers of two trainings of the same trial."""

from __future__ import annotations

from collections.abc import Mapping

import torch

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}
"""Largest relative norm of a difference that rounding explains after a few steps, by precision."""


FLOOR = {torch.float64: 1e-5, torch.float32: 1e-2}
"""Smallest size of a number in a relative difference, by precision: smaller ones count as this size."""


def relative_difference(value: torch.Tensor, expected: torch.Tensor, floor: float = 1e-8) -> float:
    """Return the norm of the difference over the norm of the expected value, over the finite numbers.

    Infinite if NaNs and infinities differ in place, and for unequal whole numbers. floor: smallest norm per number in
    the denominator: a bias before a BatchNorm has nothing but rounding in it.
    """
    if not expected.is_floating_point() and not expected.is_complex():
        return 0.0 if torch.equal(value, expected) else float("inf")
    finite = expected.isfinite()
    if not torch.equal(value.isfinite(), finite):
        return float("inf")
    value, expected = value[finite], expected[finite]
    least = floor * max(1, expected.numel()) ** 0.5
    return ((value - expected).norm() / expected.norm().clamp(min=least)).item()


def first_difference(
    values: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor], dtype: torch.dtype
) -> str | None:
    """Return the name of the first value that differs by more than rounding in this precision; None if all are
    equal."""
    return next(
        (
            name
            for name, value in expected.items()
            if not relative_difference(values[name], value, FLOOR[dtype]) <= TOLERANCE[dtype]
        ),
        None,
    )
