"""Whether two trainings of the same trial came to the same numbers."""

from __future__ import annotations

from collections.abc import Mapping

import torch

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}
"""Largest relative norm of a difference that rounding explains after a few steps, by precision."""


def relative_difference(value: torch.Tensor, expected: torch.Tensor) -> float:
    """The norm of the difference over the norm of what is expected.

    0 where both have NaNs and infinities at the same places. Of whole numbers: infinite unless they are equal.
    """
    if not expected.is_floating_point() and not expected.is_complex():
        return 0.0 if torch.equal(value, expected) else float("inf")
    if not bool(expected.isfinite().all()):
        return 0.0 if torch.equal(value.isfinite(), expected.isfinite()) else float("inf")
    return ((value - expected).norm() / expected.norm().clamp(min=1e-8)).item()


def first_difference(
    values: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor], dtype: torch.dtype
) -> str | None:
    """The name of the first value that differs by more than rounding in this precision; None where all are equal."""
    return next(
        (name for name, value in expected.items() if not relative_difference(values[name], value) <= TOLERANCE[dtype]),
        None,
    )
