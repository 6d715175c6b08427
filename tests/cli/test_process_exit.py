"""The exit of a command's process, where a library in C++ ends badly, and where an experiment leaves a thread."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import atexit, ctypes, sys
from raygpu.cli.process_exit import run_and_exit

def main():
    libc = ctypes.CDLL(None)
    libc.__cxa_atexit(libc.abort, None, None)
    atexit.register(print, "exit handlers ran")
    sys.stdout.write("begun\\n")
    return {code}

run_and_exit(main)
"""


@pytest.mark.parametrize(("code", "ends_by"), [(130, 130), (0, -signal.SIGABRT), (1, -signal.SIGABRT)])
def test_an_interrupted_process_ends_after_its_exit_handlers_and_before_libraries_do(code: int, ends_by: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(code=code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == ends_by, done.stderr
    assert done.stdout == "begun\nexit handlers ran\n"


LEFTOVER = """
import threading, time
from raygpu.cli import process_exit
from raygpu.cli.command import framed
process_exit.PATIENCE_S = 0.1
if {seconds} > 0:
    threading.Thread(target=time.sleep, args=({seconds},), name="loader").start()
for _ in range(2):
    code = framed(lambda: 0, "interrupted")
raise SystemExit(code)
"""


def end(seconds: float) -> str:
    """What a command prints to standard error that leaves a thread of so many seconds."""
    program = LEFTOVER.format(seconds=seconds)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    return done.stderr


def test_a_thread_that_holds_the_end_up_is_named_once() -> None:
    (line,) = end(1.0).splitlines()
    assert line.startswith("raygpu: done, but a thread of the experiment's code still runs: loader; ")


def test_an_end_without_threads_says_nothing() -> None:
    assert end(0.0) == ""
