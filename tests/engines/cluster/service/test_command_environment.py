"""What a started worker takes over from the command that it works for."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from raygpu.engines.cluster.service.command_environment import TakenOver, changes, write


def test_variables_come_and_go_but_those_of_the_start_stay() -> None:
    command = {"HF_HOME": "/new", "PATH": "/bin", "RAY_AUTH_TOKEN": "t", "OMP_NUM_THREADS": "8", "RAY_ADDRESS": "a:1"}
    own = {"HF_HOME": "/old", "PATH": "/bin", "GONE": "1", "OMP_NUM_THREADS": "1", "RAY_JOB_ID": "7", "BY_RAY": "1"}
    started_with = {"HF_HOME": "/old", "PATH": "/bin", "GONE": "1", "CUDA_VISIBLE_DEVICES": "-1"}
    wanted, removed = changes(command, own, started_with)
    assert wanted == {"HF_HOME": "/new", "RAY_ADDRESS": "a:1"}
    assert removed == ["GONE"]


def test_a_process_takes_over_folder_umask_and_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "command"
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("NEW_HERE", "yes")
    monkeypatch.chdir(tmp_path)
    before = os.umask(0o027)
    try:
        write(file)
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    script = "import os, tempfile, sys\ntempfile.gettempdir()\n"
    script += "from raygpu.engines.cluster.service.command_environment import TakenOver\n"
    script += f"TakenOver({str(file)!r})._apply()\n"
    script += "print(os.environ['NEW_HERE'], os.getcwd(), tempfile.gettempdir(), oct(os.umask(0)))"
    monkeypatch.delenv("NEW_HERE")
    monkeypatch.delenv("TMPDIR")
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd="/")
    assert said.stdout.split() == ["yes", str(tmp_path), str(tmp_path), "0o27"]


def test_a_command_that_has_ended_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="none"):
        TakenOver(str(tmp_path / "none"))._apply()
