"""Metrics in the lines that a script prints: objects of JSON, and text by regular expressions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

LONGEST_QUOTE = 200
"""Largest number of characters of a line that a message quotes."""
COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
DIGITS = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
NUMBER = re.compile(DIGITS)
SIGN = re.compile(r"(?<![\w.)\]])[-+]$")
"""A sign at the end of a text that is no dash between words or numbers."""
THOUSANDS = re.compile(r"\d{1,3},\d{3}(?!\d)")
NOT_FINITE = r"[-+]?\b(?:[Nn][Aa][Nn]|[Ii][Nn][Ff](?:inity)?)\b"
FRACTIONS = ("0.25", "12.5", "137.125")
"""Numbers that a group takes which is for any number."""
GROUP = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]])*\]|(?P<open>\((?!\?))|(?P<other>\()|(?P<close>\))", re.DOTALL)
"""Parts of a regular expression in which brackets stand, or are none: escapes, classes of characters, groups."""


class PrintedMetrics:
    """The metrics of `[script] metrics`, collected from a script's lines until each of them has been seen.

    expressions: regular expression with one group by the metric's name.
    """

    def __init__(self, expressions: Mapping[str, str]) -> None:
        self.expressions = {name: re.compile(text) for name, text in expressions.items()}
        self._for_others = {name: _for_others(text) for name, text in expressions.items()}
        self.seen: dict[str, float] = {}
        """Values found since the last complete set, or since `clear`."""

    def take(self, line: str) -> dict[str, float]:
        """Search a line; return all metrics if each has been found since the last time, else an empty dict.

        A value that is found again replaces the earlier one. Where an expression finds the digits of a number, its sign
        and its exponent count too; NaN and infinity are found where it wants digits. Raises ValueError for text that is
        no number.
        """
        line = COLOURS.sub("", line)
        for name, expression in self.expressions.items():
            found = expression.search(line) or self._for_others[name].search(line)
            if found is not None and found[1] is not None:
                self.seen[name] = self._number(name, _whole_number(found), line)
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


def _whole_number(found: re.Match[str]) -> str:
    """Return the text of a match's group, or the number of the line of which it is the digits alone."""
    start, end = found.span(1)
    line = found.string
    if NUMBER.fullmatch(found[1]) is None or end != found.end():
        return found[1]
    if (thousands := THOUSANDS.match(line, start)) is not None:
        return thousands[0]
    if SIGN.search(line, 0, start) is not None:
        start -= 1
    whole = NUMBER.match(line, start)
    return found[1] if whole is None or whole.end() < end else whole[0]


def _for_others(expression: str) -> re.Pattern[str]:
    """Return a regular expression that finds NaN or infinity where another one's first group finds digits; numbers in
    any notation, too, if it takes any fraction."""
    if "(?P<" in expression:  # its first group may have a name, to which the rest refers
        return re.compile(expression)
    depth, start = 0, None
    for part in GROUP.finditer(expression):
        if part["open"] and start is None:
            start, outer = part.start(), depth
        depth += bool(part["open"] or part["other"]) - bool(part["close"])
        if part["close"] and start is not None and depth == outer:
            group = expression[start : part.end()]
            wanted = f"{NOT_FINITE}|{DIGITS}" if _takes_fractions(group) else NOT_FINITE
            return re.compile(f"{expression[:start]}({wanted}){expression[part.end() :]}")
    return re.compile(expression)


def _takes_fractions(group: str) -> bool:
    try:
        return all(re.fullmatch(group, text) for text in FRACTIONS)
    except re.error:  # it refers to another group
        return False


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
