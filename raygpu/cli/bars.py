"""Parts of a live table: bars and small curves of characters, and rows that are cut at the terminal's width."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from rich.table import Table
from rich.text import Text

LEVELS = "▁▂▃▄▅▆▇█"
ASCII_LEVELS = "_.-:=+*#"


def bar(part: float, width: int = 30, *, blocks: bool = True) -> Text:
    """Return a bar for the part of the whole, from 0 to 1. blocks: whether the stream has other characters than
    ASCII."""
    filled = round(width * min(1.0, max(0.0, part)))
    full, empty = ("━", "─") if blocks else ("#", "-")  # told apart without colors, too
    return Text.assemble((full * filled, "green"), (empty * (width - filled), "grey37"))


def curve(values: Sequence[float], width: int = 12, *, blocks: bool = True) -> str:
    """Return values as a small curve, a character each, or the mean of several; the lowest value is at the bottom."""
    if not values:
        return ""
    count = min(width, len(values))
    bounds = [round(at * len(values) / count) for at in range(count + 1)]
    points = [fmean(values[start:end]) for start, end in pairwise(bounds)]
    low, high = min(points), max(points)
    levels = LEVELS if blocks else ASCII_LEVELS
    if high <= low:
        return levels[len(levels) // 2] * count
    return "".join(levels[min(len(levels) - 1, int((point - low) / (high - low) * len(levels)))] for point in points)


def labelled(rows: Sequence[tuple[str, Text | str]], width: int) -> Table:
    """Return rows, each with its label, as a table; a row that is wider than the terminal ends in an ellipsis."""
    labels = max(len(label) for label, _ in rows)
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", justify="right", no_wrap=True, width=labels)
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=max(1, width - labels - 2))
    for label, row in rows:
        table.add_row(label, Text(row) if isinstance(row, str) else row)
    return table
