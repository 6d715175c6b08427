"""Metrics in the lines that a script prints: objects of JSON, and text by regular expressions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

LONGEST_QUOTE = 200
"""Largest number of characters of a line that a message quotes."""
COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class PrintedMetrics:
    """The metrics of `[script] metrics`, collected from a script's lines until each of them has been seen.

    expressions: regular expression with one group by the metric's name.
    """

    def __init__(self, expressions: Mapping[str, str]) -> None:
        self.expressions = {name: re.compile(text) for name, text in expressions.items()}
        self.seen: dict[str, float] = {}
        """Values found since the last complete set, or since `clear`."""

    def take(self, line: str) -> dict[str, float]:
        """Search a line; return all metrics if each has been found since the last time, else an empty dict.

        A value that is found again replaces the earlier one. Raises ValueError for text that is no number.
        """
        line = COLOURS.sub("", line)
        for name, expression in self.expressions.items():
            found = expression.search(line)
            if found is not None and found[1] is not None:
                self.seen[name] = self._number(name, found[1], line)
        if not self.expressions or len(self.seen) < len(self.expressions):
            return {}
        complete, self.seen = self.seen, {}
        return complete

    def clear(self) -> None:
        """Forget the values of an incomplete set."""
        self.seen = {}

    def _number(self, name: str, text: str, line: str) -> float:
        try:
            if "_" not in text:  # which Python reads as a thousands separator
                return float(text.strip().removesuffix("%"))
        except ValueError:
            pass
        expression = self.expressions[name].pattern
        raise ValueError(
            f"[script] metrics: {name}: {expression!r} found {text!r}, which is no number, in the line"
            f" {line[:LONGEST_QUOTE]!r}"
        )


def json_metrics(line: str) -> dict[str, float]:
    """Return the numbers of a line that is a JSON object; empty for any other line."""
    if not line.lstrip().startswith("{"):
        return {}
    try:
        values = json.loads(line)
    except ValueError:
        return {}
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, float) or (type(value) is int and abs(value) < 2**1000)
    }
