"""Data frames of several number types as one array: pandas by itself makes an array of objects of them."""

from __future__ import annotations

from typing import Any

import numpy as np


def frame_array(frame: Any, array: np.ndarray) -> np.ndarray:
    """Return the numbers of a data frame or series of pandas, of the type that holds those of all its columns; missing
    ones as NaN.

    array: what pandas makes of it, of objects. Returns that where a column holds other things than numbers.
    """
    types = [_number_type(kind) for _, kind in _columns(frame)]
    numbers = [kind for kind in types if kind is not None]
    if not types or len(numbers) < len(types):
        return array
    wanted = np.result_type(*numbers)
    if wanted.kind != "f" and bool(np.any(frame.isna().to_numpy())):
        wanted = np.dtype(np.float64)
    missing = {"na_value": np.nan} if wanted.kind == "f" else {}
    converted: np.ndarray = frame.to_numpy(dtype=wanted, **missing)
    return converted


def without_numbers(data: Any, shape: tuple[int, ...]) -> str:
    """Return in words what data is that holds other things than numbers; of a data frame with the names of these
    columns."""
    others = [f"{name!r} ({kind})" for name, kind in _columns(data) if _number_type(kind) is None]
    columns = f": {', '.join(others)}" if hasattr(data, "columns") else ""
    return f"a {type(data).__name__} of {shape} that holds other things than numbers{columns}"


def _columns(frame: Any) -> list[tuple[Any, Any]]:
    """Return the name and the type of each column, of a series the one; nothing for other data."""
    if not type(frame).__module__.startswith("pandas") or not hasattr(frame, "dtype" if frame.ndim == 1 else "dtypes"):
        return []
    return [("", frame.dtype)] if frame.ndim == 1 else [*frame.dtypes.items()]


def _number_type(kind: Any) -> np.dtype | None:
    """Return the type of NumPy that holds a column's numbers, as int64 for Int64; None for other things."""
    numbers = getattr(kind, "numpy_dtype", kind)
    return numbers if isinstance(numbers, np.dtype) and numbers.kind in "biuf" else None
