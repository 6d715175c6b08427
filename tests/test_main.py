"""One name for all commands."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from raygpu import __main__ as console
from raygpu import __version__, submit

ROOT = Path(__file__).parents[1]


def test_each_command_is_reached_and_described(capsys: pytest.CaptureFixture[str]) -> None:
    assert console.main(["--help"]) == 0
    usage = capsys.readouterr().out
    for name in {*console.COMMANDS, *submit.COMMANDS, "submit", "deliver"}:
        assert f"  {name}" in usage
        assert console.main([name, "--help"]) == 0
        assert f"usage: raygpu {name} " in capsys.readouterr().out


def test_a_name_that_is_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert console.main(["swep"]) == 2
    assert "read 'swep' (did you mean 'sweep'?); allowed: init, sweep, pack" in capsys.readouterr().err
    assert console.main([]) == 2
    assert "usage: raygpu COMMAND" in capsys.readouterr().out


def test_it_is_installed_and_runs_as_a_module() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"raygpu": "raygpu.__main__:program"}
    said = subprocess.run([sys.executable, "-m", "raygpu", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout == f"raygpu {__version__}\n"


def test_an_interruption_while_it_begins_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(words: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(console, "run", interrupted)
    assert console.main(["doctor"]) == 130
    assert capsys.readouterr().err == "raygpu: interrupted before anything had begun\n"
