"""Commands in advice are named as the person has typed theirs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from raygpu import sweep
from raygpu.config.command_names import as_typed, typed


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (str(Path(sweep.__file__)), "python -m raygpu.train"),
        ("/usr/bin/raygpu", "raygpu train"),
        ("ipykernel_launcher.py", "raygpu train"),
        ("", "raygpu train"),
    ],
)
def test_commands_are_named_as_they_are_typed(program: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [program])
    assert typed("train") == expected
    assert as_typed("as in: python -m raygpu.train x.toml") == f"as in: {expected} x.toml"
