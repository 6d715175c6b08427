"""Metrics in the lines that a script prints: objects of JSON, and text by regular expressions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

LONGEST_QUOTE = 200
"""Largest number of characters of a line that a message quotes."""
COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
UNSIGNED = r"(?:\d+\.?\d*|\.\d+)"
NUMBER = re.compile(rf"[-+]?{UNSIGNED}(?:[eE][-+]?\d+)?")
SIGN = r"(?<![\w.)\]])[-+]"
"""A sign that is no dash between words or numbers."""
SIGN_AT_END = re.compile(f"{SIGN}$")
THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?![\d,])")
NOT_FINITE = r"[-+]?\b(?:[Nn][Aa][Nn]|[Ii][Nn][Ff](?:inity)?)\b"
NOTATIONS = rf"{NOT_FINITE}|{SIGN}{UNSIGNED}(?:[eE][-+]?\d+)?|{UNSIGNED}[eE][-+]?\d+"
"""Numbers that an expression for digits passes over."""
FRACTIONS = ("0.25", "12.5", "137.125")
"""Numbers that a group for any number takes."""
GAP = re.compile(r"\.[*+{]|\\[SDW]|\[\^")
"""Part of an expression that any text may stand for."""
OWN_SIGN = re.compile(r"-\]?[?*+]?$")
PARTS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]])*\]|(?P<open>\((?!\?))|(?P<other>\()|(?P<close>\))", re.DOTALL)
"""Escaped characters, classes of characters, and the brackets of groups in a regular expression."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A regular expression whose first group is a number."""

    pattern: re.Pattern[str]
    others: re.Pattern[str] | None = None
    """The same with a group for the notations that its own group passes over; None if any text may come before it."""
    takes_fractions: bool = False
    has_sign: bool = False
    """Whether a sign stands before the group, in the expression itself."""

    @classmethod
    def of(cls, text: str) -> Expression:
        """Compile an expression."""
        pattern = re.compile(text)
        start, end = _first_group(text)
        if start == end:
            return cls(pattern)
        before, group = text[:start], text[start:end]
        try:
            takes_fractions = all(re.fullmatch(group, number) for number in FRACTIONS)
            wanted = NOTATIONS if takes_fractions else NOT_FINITE
            others = None if GAP.search(before) else re.compile(f"{before}({wanted}){text[end:]}")
        except re.error:  # the group refers to another one, or has to have a fixed width
            return cls(pattern)
        return cls(pattern, others, takes_fractions, OWN_SIGN.search(before) is not None)

    def find(self, line: str) -> str | None:
        """Return the text of the number in a line; None without one."""
        match = self.pattern.search(line)
        if match is None and self.others is not None:
            match = self.others.search(line)
        return None if match is None or match[1] is None else self._whole(match)

    def _whole(self, found: re.Match[str]) -> str:
        """Return the text of a match's group, or the number of the line of which it is the digits alone."""
        start, end = found.span(1)
        line = found.string
        if not self.takes_fractions or end != found.end() or NUMBER.fullmatch(found[1]) is None:
            return found[1]
        if (thousands := THOUSANDS.match(line, start)) is not None:
            return thousands[0]
        if not self.has_sign and SIGN_AT_END.search(line, 0, start) is not None:
            start -= 1
        number = NUMBER.match(line, start)
        return found[1] if number is None or number.end() < end else number[0]


def _first_group(expression: str) -> tuple[int, int]:
    """Return the beginning and the end of the first group; both 0 without one that has no name."""
    depth, start = 0, None
    for part in PARTS.finditer(expression) if "(?P<" not in expression else ():
        if part["open"] and start is None:
            start, outer = part.start(), depth
        depth += bool(part["open"] or part["other"]) - bool(part["close"])
        if part["close"] and start is not None and depth == outer:
            return start, part.end()
    return 0, 0


class PrintedMetrics:
    """The metrics of `[script] metrics`, collected from a script's lines until each of them has been seen.

    expressions: regular expression with one group by the metric's name.
    """

    def __init__(self, expressions: Mapping[str, str]) -> None:
        self.expressions = {name: Expression.of(text) for name, text in expressions.items()}
        self.seen: dict[str, float] = {}
        """Values found since the last complete set, or since `clear`."""

    def take(self, line: str) -> dict[str, float]:
        """Search a line; return all metrics if each has been found since the last time, else an empty dict. Raises
        ValueError for text that is no number."""
        return self.add(self.find(line))

    def find(self, line: str) -> dict[str, float]:
        """Return the metrics in a line.

        Where an expression finds the digits of a number, its sign and its exponent count too; where it finds none, NaN,
        infinity, and numbers with a sign or an exponent may stand in its group's place. Raises ValueError for text that
        is no number.
        """
        line = COLOURS.sub("", line)
        found = {name: expression.find(line) for name, expression in self.expressions.items()}
        return {name: self._number(name, text, line) for name, text in found.items() if text is not None}

    def add(self, values: Mapping[str, float]) -> dict[str, float]:
        """Add values, which replace earlier ones; return all metrics if each has been found since the last time, else
        an empty dict."""
        self.seen |= values
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
        expression = self.expressions[name].pattern.pattern
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
