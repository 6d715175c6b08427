"""Numbers and hyper-parameters as text for a person."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from raygpu.planning.confidence import Interval, spread_text

MOST_DIGITS = 6
"""Largest number of digits after the point of a score with an error."""
LONGEST_VALUE = 24
"""Largest number of characters of a hyper-parameter in a line."""


def hyperparameters(hp: Mapping[str, Any]) -> str:
    """Return hyper-parameters as text, `lr=0.1 hidden=64`."""
    return " ".join(f"{name}={value(v)}" for name, v in hp.items())


def value(v: Any) -> str:
    """Return a hyper-parameter as short text."""
    if isinstance(v, float):
        return f"{v:.4g}"
    text = "" if v is None else str(v)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}\N{HORIZONTAL ELLIPSIS}"


def score_text(mean: float, error: float | None, like: float | None = None) -> str:
    """Return a score with its standard error as text, `0.9712 ± 0.0031`: as many digits as the error allows.

    like: error of the first score of a table, by which all have as many digits.
    """
    if error is None:
        return f"{mean:.6g}"
    measure = like or error
    if not measure or not math.isfinite(measure):
        return f"{mean:.6g} ± {error:.2g}"
    digits = max(0, 1 - math.floor(math.log10(measure)))
    return f"{mean:.{digits}f} ± {error:.{digits}f}" if digits <= MOST_DIGITS else f"{mean:.6g} ± {error:.2g}"


def interval(value: Interval, unit: str = "") -> str:
    """Return an interval as text, `1.90x (1.88 to 1.92)` with the unit `x`."""
    return f"{value.middle:.2f}{unit}{spread_text(value.low, value.high, '{:.2f}')}"


def cut(text: str, width: int) -> str:
    """Return the text, cut with an ellipsis where it is longer than the width."""
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}\N{HORIZONTAL ELLIPSIS}"


def throughput(rate: float) -> str:
    """Return a throughput as text, `1,234 samples/s`."""
    return f"{rate:,.0f} samples/s"


def counted(number: int, thing: str) -> str:
    """Return a number of things as text: `1 trial`, `3 trials`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def left(seconds: float | None) -> str:
    """Return the time left as text. seconds: None if unknown."""
    if seconds is None:
        return "time left not known yet"
    return f"about {duration(seconds)} left" if seconds else "all done"


def duration(seconds: float) -> str:
    """Return a duration as text: `42 s`, `3 min 5 s`, `2 h 10 min`."""
    whole_seconds = round(seconds)
    if whole_seconds < 60:
        return f"{whole_seconds} s"
    if whole_seconds < 3600:
        return f"{whole_seconds // 60} min {whole_seconds % 60} s"
    return f"{whole_seconds // 3600} h {whole_seconds % 3600 // 60} min"


def sentences(lines: Sequence[str]) -> list[str]:
    """Return lines of the console as sentences, with a capital letter and a full stop."""
    return [f"{line[:1].upper()}{line[1:]}." for line in lines]


def aligned(rows: Sequence[Sequence[str]], *, named: bool = False) -> list[str]:
    """Return the rows of a table as lines, with each column as wide as its widest cell and to the right; with `named`
    the first one to the left."""
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    return [
        "  ".join([name.ljust(first) if named else name.rjust(first), *map(str.rjust, cells, others)])
        for name, *cells in rows
    ]
