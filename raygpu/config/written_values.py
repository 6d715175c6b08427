"""Hyper-parameters as a configuration file can hold them: NumPy's numbers become Python's."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator

WRITTEN = str | int | float | datetime.date | datetime.time
"""Types of TOML's values, beside lists and tables; bool is an int, and datetime a date."""


def as_written(values: Any, depth: int = 0) -> Any:
    """Return values as a file gives them back: NumPy's as Python's, and tuples as lists.

    depth: number of lists around them; None is left to the space's own check, but for one in a list of a list. Raises
    ValueError for an object of another type.
    """
    if isinstance(values, np.generic | np.ndarray):
        values = values.tolist()
    if isinstance(values, Mapping):
        return {name: as_written(value, depth) for name, value in values.items()}
    if isinstance(values, list | tuple | range):
        return [as_written(value, depth + 1) for value in values]
    if isinstance(values, WRITTEN) or (values is None and depth <= 1):
        return values
    raise ValueError(f"{values!r} cannot be written to a file; give it a name, a text, and choose by that in model(hp)")


def _table(values: Any) -> Any:
    if not isinstance(values, Mapping):
        return values
    table = {}
    for name, value in values.items():
        try:
            table[name] = as_written(value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return table


Values = Annotated[dict[str, Any], BeforeValidator(_table)]
"""Table of hyper-parameters."""
