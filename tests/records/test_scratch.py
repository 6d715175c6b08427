"""A process' folder for temporary files goes with it, and a killed one's with the next process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from raygpu.records import scratch

MAKE = """
import os, sys, time
from raygpu.records import scratch
(scratch.home() / "checkpoint").mkdir()
if "fork" in sys.argv and os.fork():
    os._exit(0)
print(scratch.home() if "own" in sys.argv else sorted(scratch.shared_folder().glob("[0-9]*"))[0], flush=True)
time.sleep(600 if "wait" in sys.argv else 0)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path / f"raygpu-{os.getuid()}"


def process(*words: str) -> tuple[subprocess.Popen[str], Path]:
    child = subprocess.Popen([sys.executable, "-c", MAKE, *words], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    return child, Path(child.stdout.readline().strip())


def test_a_folder_goes_with_its_process_and_a_killed_one_s_with_the_next(temporary: Path) -> None:
    ended, folder = process("own")
    ended.wait(120)
    assert not folder.exists()
    living, kept = process("own", "wait")
    killed, abandoned = process("own", "wait")
    killed.kill()
    killed.wait()
    try:
        assert (abandoned / "checkpoint").is_dir()
        scratch.delete_abandoned()
        assert not abandoned.exists()
        assert (kept / "checkpoint").is_dir()
    finally:
        living.kill()
        living.wait()
    own = scratch.home()
    assert own == scratch.home()
    assert own.parent == temporary
    assert not kept.exists()
    assert temporary.stat().st_mode & 0o777 == 0o700


def test_a_folder_stays_while_a_forked_process_uses_it(temporary: Path) -> None:
    child, folder = process("fork", "wait")
    child.wait(120)
    try:
        scratch.delete_abandoned()
        assert (folder / "checkpoint").is_dir()
    finally:
        found = subprocess.run(["pgrep", "-f", "scratch.shared_folder"], capture_output=True, text=True, check=True)
        for pid in found.stdout.split():
            os.kill(int(pid), signal.SIGKILL)
    deadline = time.monotonic() + 30
    while folder.exists():
        assert time.monotonic() < deadline
        scratch.delete_abandoned()
        time.sleep(0.05)


def test_another_one_s_folder_is_refused(temporary: Path) -> None:
    temporary.mkdir(mode=0o777)
    temporary.chmod(0o777)
    with pytest.raises(PermissionError, match="is open to others"):
        scratch.home()


def test_threads_that_ask_at_once_get_one_folder(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready, found = threading.Barrier(2), list[Path]()
    delete = scratch.delete_abandoned

    def both(parent: Path | None = None) -> None:
        delete(parent)
        ready.wait(60)  # neither has one yet

    monkeypatch.setattr(scratch, "delete_abandoned", both)
    threads = [threading.Thread(target=lambda: found.append(scratch.home())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 2
    assert len(set(found)) == 1
    assert [path for path in temporary.iterdir() if path.is_dir()] == [found[0]]
