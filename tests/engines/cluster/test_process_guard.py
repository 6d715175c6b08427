"""A program under the guard ends with the process that started it, or when that one asks for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from raygpu.engines.cluster.process_guard import GuardedProcess, guarded

PROGRAM = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
STARTER = """
import os, sys, time
from raygpu.engines.cluster.process_guard import GuardedProcess, guarded
process = GuardedProcess(guarded([sys.executable, "-c", sys.argv[1]]), sys.argv[2], os.environ)
time.sleep(600)
"""


def pid_in(output: Path) -> int:
    deadline = time.monotonic() + 60
    while not output.exists() or not output.read_text().endswith("\n"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return int(output.read_text().split()[-1])


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 30
    with suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
    return True


def test_it_ends_when_it_is_asked_to_and_its_output_is_added_to_the_file(tmp_path: Path) -> None:
    output = tmp_path / "output"
    output.write_text("of the try before\n")
    process = GuardedProcess(guarded([sys.executable, "-c", PROGRAM]), output, os.environ)
    while len(output.read_text().splitlines()) < 2:
        assert process.status is None
        time.sleep(0.02)
    pid = pid_in(output)
    process.ask_to_end()
    process.ask_to_end()
    process.wait()
    assert process.status is not None
    assert gone(pid)
    assert output.read_text().startswith("of the try before\n")


def test_it_ends_with_a_starting_process_that_is_killed(tmp_path: Path) -> None:
    output = tmp_path / "output"
    starter = subprocess.Popen([sys.executable, "-c", STARTER, PROGRAM, str(output)])
    pid = pid_in(output)
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    assert gone(pid)


def test_the_status_of_a_program_that_has_ended_is_its_own(tmp_path: Path) -> None:
    process = GuardedProcess(guarded([sys.executable, "-c", "raise SystemExit(3)"]), tmp_path / "output", os.environ)
    process.wait()
    assert process.status == 3
