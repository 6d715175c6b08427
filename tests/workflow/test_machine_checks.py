"""Findings about folders, limits, the compiler and ports, with faults that the test brings about."""

from __future__ import annotations

import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest

from raygpu.workflow import machine_checks

Usage = namedtuple("Usage", "total used free")
LISTENS = (
    "import socket, sys; s = socket.create_server((sys.argv[2], 0)); print(s.getsockname()[1], flush=True); input()"
)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    assert machine_checks.writable("HOME", tmp_path).state == "ok"
    check = machine_checks.writable("HOME", Path("/proc"))
    assert (check.state, check.mend) == ("failure", "set HOME to a folder of yours")


def test_a_temporary_folder_that_is_open_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert machine_checks.temporary().state == "ok"
    (folder,) = tmp_path.iterdir()
    folder.chmod(0o777)
    assert "is open to others" in machine_checks.temporary().finding


def test_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    path = tmp_path / "auth_token"
    assert machine_checks.token(path).state == "ok"
    path.write_text("x")
    path.chmod(0o644)
    assert machine_checks.token(path).mend == f"chmod 600 {path}"
    path.chmod(0o600)
    assert machine_checks.token(path).state == "ok"
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert machine_checks.token(path).state == "warning"


def test_shared_memory_and_disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def has(free: int) -> None:
        monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(2**40, 2**40 - free, free))

    has(2**25)
    assert machine_checks.shared_memory(tmp_path).state == "warning"
    assert machine_checks.disk_space("disk", tmp_path / "not" / "there").state == "failure"
    has(2**34)
    assert machine_checks.shared_memory(tmp_path).state == "ok"
    assert machine_checks.disk_space("disk", tmp_path).state == "warning"
    has(2**39)
    assert machine_checks.disk_space("disk", tmp_path).state == "ok"
    assert machine_checks.shared_memory(tmp_path / "none").state == "ok"


@pytest.mark.parametrize(
    ("soft", "hard", "mend"), [(1024, 65536, "ulimit -n 65536"), (1024, 1024, "raise the hard limit"), (4096, -1, None)]
)
def test_open_files(soft: int, hard: int, mend: str | None) -> None:
    check = machine_checks.open_files(soft, hard)
    assert (check.mend or "").startswith(mend or "")
    assert (check.state == "ok") == (mend is None)


def test_a_compiler_that_is_missing_or_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/no/such/compiler")
    assert "is not on PATH" in machine_checks.compiler().finding
    monkeypatch.setenv("CXX", "false")
    assert machine_checks.compiler().state == "warning"


@pytest.mark.parametrize(("host", "state"), [("127.0.0.1", "ok"), ("0.0.0.0", "warning"), ("::", "warning")])
def test_a_server_beyond_loopback_is_told(host: str, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", "print(flush=True); input()", "mlflow server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it runs, and has its command line
        listening = SimpleNamespace(status="LISTEN", pid=process.pid, laddr=SimpleNamespace(ip=host, port=5000))
        other = SimpleNamespace(status="LISTEN", pid=1, laddr=SimpleNamespace(ip="0.0.0.0", port=22))
        monkeypatch.setattr("psutil.net_connections", lambda kind: [listening, other])
        check = machine_checks.ports()
        process.communicate("\n")
    assert check.state == state
    assert (f"{host}:5000 (pid {process.pid})" in check.finding) == (state == "warning")


def test_this_machine_can_be_asked() -> None:
    assert machine_checks.ports().name == "ports"
