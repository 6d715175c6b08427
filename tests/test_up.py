"""`raygpu up`, `down` and `status` where no service runs, and their faults in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from raygpu import down, status, up
from raygpu.engines.cluster.service import handover

STATE: dict[str, Any] = {
    "pid": 7,
    "begun": "2026-01-01T10:00:00+00:00",
    "num_gpus": 2,
    "free_gpus": 0.5,
    "gpus": ["H100", "H100"],
    "idle_workers": 3,
    "workers": 9,
    "standby": False,
    "used_by": [{"what": "sweep digits", "pid": 8, "gpus": 1.5}],
    "waiting": [{"what": "pack cifar", "pid": 9}],
    "ends_in_s": None,
    "ending": False,
    "logs": "/logs",
    "output": "/out",
    "dashboard": None,
}


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.mark.parametrize(
    ("command", "words", "fault"),
    [
        (up, ["--idle-minutes", "soon"], "--idle-minutes: read 'soon'; allowed: minutes, above 0"),
        (up, ["--idle-minutes", "0"], "--idle-minutes: read '0'"),
        (up, ["--workers", "0"], "--workers: read '0'; allowed: a whole number from 1"),
        (up, ["now"], "read 'now'; allowed: --foreground"),
        (down, ["all"], "read 'all'; allowed: --now"),
        (status, ["--jsn"], "--jsn"),
    ],
)
def test_a_wrong_word_is_told(command: Any, words: list[str], fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(words) == 2
    assert fault in capsys.readouterr().err


def test_without_a_service(capsys: pytest.CaptureFixture[str]) -> None:
    assert status.main([]) == 1
    assert "none runs; raygpu up starts one" in capsys.readouterr().out
    assert status.main(["--json"]) == 1
    assert json.loads(capsys.readouterr().out) is None
    assert down.main([]) == 0
    assert handover.handed_over(["sweep"]) is None


@pytest.mark.parametrize("command", [up, down, status])
def test_help(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--help"]) == 0
    assert "usage" in capsys.readouterr().out


def test_tokens_are_wanted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert up.main(["--foreground"]) == 2
    assert "RAY_AUTH_MODE turns Ray's tokens off" in capsys.readouterr().err


def test_the_state_in_lines() -> None:
    lines = status.status_lines(STATE)
    assert "GPUs: 0.5 of 2 free (H100)" in lines
    assert "workers: 3 of 9 idle; the next command's process is not ready" in lines
    assert "used by: sweep digits, pid 8: 1.5 GPUs" in lines
    assert "waiting: pack cifar, pid 9" in lines
    assert "Ray dashboard: -" in lines
    assert not [line for line in lines if line.startswith("ends")]
    assert "ends: in 1 min 30 s, unless a command comes" in status.status_lines({**STATE, "ends_in_s": 90.0})
    assert "ends: after the commands that use it" in status.status_lines({**STATE, "ending": True})
