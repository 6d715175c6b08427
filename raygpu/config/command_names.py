"""The names of the commands, for lines that tell a person what to type."""

from __future__ import annotations

import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def typed(command: str) -> str:
    """Return a command as it is typed: `raygpu sweep`, or `python -m raygpu.sweep` if this process was started so."""
    by_module = Path(sys.argv[0]).resolve().parent == PACKAGE
    return f"python -m raygpu.{command}" if by_module else f"raygpu {command}"


def as_typed(text: str) -> str:
    """Return a text with its commands, `python -m raygpu.sweep`, as they are typed."""
    return text.replace("python -m raygpu.", typed(""))
