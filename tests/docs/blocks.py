"""The blocks of code of README.md and docs/*.md, with the files that they are saved as."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES: Mapping[str, Path] = {path.stem: path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
RUN = ("bash", "python", "toml")
"""Languages of blocks that a test runs or loads."""
NOT_RUN = "sh"
"""Language of blocks for the reader's shell alone: an installation, a server, a cluster."""
LANGUAGES = (*RUN, NOT_RUN, "text", "mermaid")

FENCED = re.compile(r"(?P<before>[^\n]*)\n\n```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"^`(?P<file>\w+\.(?:py|toml))`")
FIRST_LINE = re.compile(r"# (?P<file>\w+\.(?:py|toml))\n")
APPENDED = re.compile(r"Append this to `(?P<file>[\w.]+)`")


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code between two fences."""

    language: str
    text: str
    file: str | None = None
    """Name of the file that the reader saves it as; None for one that is run as it is."""
    appended: bool = False
    """Whether the file exists, and the block goes to its end."""


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page in order. page: a name in PAGES.

    A file is named at the start of the line before the block, in the block's first line as a comment, or by the words
    "Append this to".
    """
    return [_block(found) for found in FENCED.finditer(PAGES[page].read_text())]


def _block(found: re.Match[str]) -> Block:
    before, language, text = found["before"], found["language"], found["text"]
    if appended := APPENDED.search(before):
        return Block(language, text, appended["file"], appended=True)
    named = NAMED.match(before) or FIRST_LINE.match(text)
    return Block(language, text, named["file"] if named else None)


def written(page: str, file: str) -> str:
    """Return the text of a file of a page, without a first line that names it."""
    return next(FIRST_LINE.sub("", block.text, count=1) for block in blocks(page) if block.file == file)
