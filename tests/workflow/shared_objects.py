"""Objects of a module that several methods of an experiment use."""

from __future__ import annotations


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.warnings = 0

    def info(self, text: str) -> None:
        self.lines.append(text)

    def warn(self, text: str) -> None:
        self.warnings += 1


class Tokenizer:
    """A tokenizer that makes its vocabulary at the first call."""

    def __init__(self) -> None:
        self.vocabulary: dict[str, int] | None = None

    def encode(self, text: str) -> list[int]:
        if self.vocabulary is None:
            self.vocabulary = {"x": 1}
        return [1]


class Stats:
    def __init__(self) -> None:
        self.calls, self.hidden = 0, 4


LOG, TOKENIZER, STATS = Log(), Tokenizer(), Stats()
