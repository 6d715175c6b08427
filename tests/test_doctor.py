"""The command as a person types it, on this machine; what the checks say of other machines is tested with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raygpu import doctor
from raygpu.workflow import diagnosis
from raygpu.workflow.diagnosis import Unusable


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("RAY_AUTH_MODE")


def test_each_check_is_a_line_and_nothing_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = [line.split(maxsplit=1)[1].partition(":")[0] for line in lines if line[0] != " "]
    assert found[:2] == ["driver", "torch"]
    assert found[-1] == "tracking"
    assert {"releases", "HOME", "TMPDIR", "token", "shared memory", "open files", "C++ compiler", "ports"} <= {*found}
    assert not list(tmp_path.iterdir())


def test_a_failure_is_exit_code_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(diagnosis, "_probe", lambda module, program: Unusable(f"no {module}.so"))
    assert doctor.main(["--json", "--tracking.uri", "http://127.0.0.1:1"]) == 1
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert checks["torch"]["state"] == "failure"
    assert checks["torch"]["finding"] == "cannot be imported: no torch.so"
    assert checks["tracking"]["state"] == "failure"
    assert "no answer" in checks["tracking"]["finding"]
    assert all(check["mend"] for check in checks.values() if check["state"] != "ok")


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["conf/sweep/digits.toml"], "read 'conf/sweep/digits.toml'; allowed: --json, --tracking.uri URI"),
        (["--jason"], "read '--jason'; allowed"),
        (["--tracking.uri"], "--tracking.uri: no value given"),
    ],
)
def test_bad_input(argv: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(argv) == 2
    assert line in capsys.readouterr().err
