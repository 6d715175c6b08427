"""CSV files of a run, read row by row."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

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
        rows = csv.DictReader(opened, restval="", strict=True)
        try:
            if rows.fieldnames is None:
                raise ValueError("empty, without the names of its columns")
            return [row_of(_whole(row)) for row in rows]
        except (ValueError, KeyError, TypeError, csv.Error) as error:
            fault = f"{file}: line {rows.line_num}: {one_line(error)}"
            raise BadInput(f"{fault}; --resume writes it anew") from error


def _whole(row: Mapping[str, str]) -> Mapping[str, str]:
    if None in row.keys():  # noqa: SIM118 - where csv keeps the further cells
        raise ValueError("more cells than columns")
    return row
