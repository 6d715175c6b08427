"""What a trial started in a session of its own ends with the local Ray that it ran in."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from raygpu.engines.cluster import orphan_processes

START = "setsid -f python -c \"{}import os, time; open('{}', 'w').write(str(os.getpid())); time.sleep(600)\""
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "


def started(path: Path) -> Path:
    deadline = time.monotonic() + 30
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return Path("/proc") / path.read_text()


def test_marked_processes_in_sessions_of_their_own_are_ended_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphan_processes, "GRACE_S", 0.5)
    daemons = {name: tmp_path / name for name in ("before", "marked", "deaf", "after")}
    subprocess.run(START.format("", daemons["before"]), shell=True, check=True)
    with orphan_processes.marked():
        subprocess.run(START.format("", daemons["marked"]), shell=True, check=True)
        subprocess.run(START.format(DEAF, daemons["deaf"]), shell=True, check=True)
        same_session = subprocess.Popen(["sleep", "600"])
    subprocess.run(START.format("", daemons["after"]), shell=True, check=True)
    running = {name: started(path) for name, path in daemons.items()}
    try:
        orphan_processes.end()
        deadline = time.monotonic() + 30
        while (running["marked"] / "environ").exists() or (running["deaf"] / "environ").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert running["before"].exists()
        assert running["after"].exists()
        assert same_session.poll() is None
    finally:
        same_session.kill()
        same_session.wait()
        for name in ("before", "after"):
            os.kill(int(running[name].name), 9)


def test_a_process_that_is_just_being_started_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its environment reads as empty until its program is loaded."""
    left, looks = orphan_processes._left, list[int]()

    def late(marks: list[str]) -> list[int]:
        looks.append(len(looks))
        return left(marks) if len(looks) > 1 else []

    monkeypatch.setattr(orphan_processes, "_left", late)
    with orphan_processes.marked():
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        orphan_processes.end()
        assert child.wait(60) == -15
    finally:
        child.kill()
