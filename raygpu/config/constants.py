"""Arrays that an experiment's module and class hold from the beginning, compared between processes.

A module that draws them by a generator without a seed has others in each process: trials would be of different models.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

Constants = Mapping[str, np.ndarray]
"""First numbers of each array, by its name in the code."""

LIBRARIES = frozenset({"numpy", "torch", "tensorflow", "keras"})
COMPARED = 64
"""Numbers of an array that are compared."""
APART = 0.01
"""Relative difference of the numbers that no rounding makes, whatever processor or number of threads computes them."""
LEAST = 1e-200
"""Magnitude below which numbers count as zero: memory that nothing has written to holds such ones."""


def constants(code: Any, *, with_module: bool = True) -> Constants:
    """Return the first numbers of the arrays of an experiment, its class and its module."""
    kind, numbers = type(code), {}
    module = vars(sys.modules[kind.__module__]) if with_module and kind.__module__ in sys.modules else {}
    for prefix, owner in (("", module), (f"{kind.__name__}.", vars(kind)), ("self.", vars(code))):
        for name, value in list(owner.items()):
            if (first := _first_numbers(value)) is not None:
                numbers[f"{prefix}{name}"] = first
    return numbers


def differing(one: Constants, other: Constants) -> Iterator[str]:
    """Yield the names of arrays that are others in two processes; those of which one process has none are left out."""
    for name in one.keys() & other.keys():
        first, second = one[name], other[name]
        distance = np.linalg.norm(first - second) if first.shape == second.shape else 0.0
        if distance > APART * np.linalg.norm(first):
            yield name


def _first_numbers(value: Any) -> np.ndarray | None:
    """Return the first numbers of an array or tensor in host memory; None of anything else."""
    if str(type(value).__module__).partition(".")[0] not in LIBRARIES or not hasattr(type(value), "shape"):
        return None
    with suppress(Exception):  # on another device, sparse, of a type that NumPy lacks
        array = value if isinstance(value, np.ndarray) else getattr(value, "detach", lambda: value)().numpy()
        if array.dtype.kind in "biufc" and array.ndim:
            first = np.nan_to_num(array.flat[:COMPARED].astype(complex), posinf=0, neginf=0)
            return np.where(np.abs(first) < LEAST, 0, first)
    return None
