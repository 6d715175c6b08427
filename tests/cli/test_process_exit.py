"""The exit of a command's process, where a library in C++ ends badly."""

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
