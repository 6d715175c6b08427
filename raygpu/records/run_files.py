"""Files of a run in CSV and JSON: a damaged one is refused in a line; and values that JSON can hold."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from raygpu.errors import BadInput, one_line

LONGEST = 2**31 - 1
"""Maximum number of characters of a cell."""
Row = TypeVar("Row")


def read_rows(file: Path, row_of: Callable[[Mapping[str, str]], Row]) -> list[Row]:
    """Return what a function makes of each row; nothing without the file. Raises BadInput if it is damaged.

    row_of: takes a row's cells by their columns. It raises ValueError, KeyError or TypeError for a damaged row.
    """
    if not file.is_file():
        return []
    csv.field_size_limit(LONGEST)
    with file.open(encoding="utf-8", newline="") as opened:
        rows = csv.DictReader(opened, strict=True)
        try:
            if rows.fieldnames is None:
                raise ValueError("empty, without the names of its columns")
            if not file.read_bytes().endswith(b"\n"):
                raise BadInput(f"{file}: its end is missing; --resume writes it anew")
            return [row_of(_whole(row)) for row in rows]
        except (ValueError, KeyError, TypeError, csv.Error) as error:
            fault = f"{file}: line {rows.line_num}: {one_line(error)}"
            raise BadInput(f"{fault}; --resume writes it anew") from error


def _whole(row: Mapping[str, str]) -> Mapping[str, str]:
    if None in row.keys():  # noqa: SIM118 - where csv keeps the further cells
        raise ValueError("more cells than columns")
    if None in row.values():
        raise ValueError("fewer cells than columns")
    return row


def read_json(file: Path, advice: str) -> dict[str, Any] | None:
    """Return the object in a JSON file; None without a file. Raises BadInput if it is damaged."""
    try:
        if not file.is_file():
            return None
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise TypeError(f"a {type(content).__name__} in the place of an object")
        return content
    except (OSError, ValueError, TypeError) as error:
        raise BadInput(f"{file}: cannot be read ({one_line(error)}); {advice}") from error


def as_json(value: Any) -> Any:
    """Convert a summary to values that JSON can hold: a number that is not finite becomes null."""
    match value:
        case Mapping():
            return {name: as_json(each) for name, each in value.items()}
        case list() | tuple():
            return [as_json(each) for each in value]
        case float() if not math.isfinite(value):
            return None
    return value


def rounded(value: float | None, digits: int = 1) -> float | None:
    """Round a reading for a file that a person reads; None, and a number that is not finite, become None."""
    return None if value is None or not math.isfinite(value) else round(value, digits)
