"""Hyper-parameters as a configuration file can hold them: NumPy's numbers become Python's."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator

WRITTEN = str | int | float | datetime.date | datetime.time
"""Types of TOML's values, beside lists and tables; bool is an int, and datetime a date."""


def as_written(values: Any) -> Any:
    """Return values as TOML holds them, or None in their place. Raises ValueError for an object of another type."""
    if isinstance(values, np.generic | np.ndarray):
        return as_written(values.tolist())
    if isinstance(values, Mapping):
        return {name: as_written(value) for name, value in values.items()}
    if isinstance(values, list | tuple | range):
        found = [as_written(value) for value in values]
        return tuple(found) if isinstance(values, tuple) else found
    if values is None or isinstance(values, WRITTEN):
        return values
    raise ValueError(f"{values!r} cannot be written to a file; give it a name, a text, and choose by that in model(hp)")


def _table(values: Any) -> Any:
    if not isinstance(values, Mapping):
        return values
    found = {}
    for name, value in values.items():
        try:
            found[name] = as_written(value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return found


Values = Annotated[dict[str, Any], BeforeValidator(_table)]
"""Table of hyper-parameters."""
