"""A command whose experiment leaves a thread behind says what it waits for."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import threading, time
from raygpu.cli import leftover_threads
from raygpu.cli.command import framed
leftover_threads.PATIENCE_S = 0.1
if {seconds} > 0:
    threading.Thread(target=time.sleep, args=({seconds},), name="loader").start()
for _ in range(2):
    code = framed(lambda: 0, "interrupted")
raise SystemExit(code)
"""


def end(seconds: float) -> str:
    """What a command prints to standard error that leaves a thread of so many seconds."""
    program = PROGRAM.format(seconds=seconds)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    return done.stderr


def test_a_thread_that_holds_the_end_up_is_named_once() -> None:
    (line,) = end(1.0).splitlines()
    assert line.startswith("raygpu: done, but a thread of the experiment's code still runs: loader; ")


def test_an_end_without_threads_says_nothing() -> None:
    assert end(0.0) == ""
