"""Run a program that ends with the process that started it, however that process ends: killed, crashed or done.

python process_guard.py PROGRAM ARGUMENTS...       ends the program when standard input closes

Standard input is a pipe whose other end the starting process holds, so that the system closes it in every case.
The guard is run by its path, and imports nothing but the standard library.
"""

from __future__ import annotations

import select
import signal
import subprocess
import sys
from collections.abc import Sequence

POLL_S = 0.5
END_S = 10.0
"""Seconds that the program has to end after SIGTERM, before it is killed."""


def keep(command: Sequence[str]) -> int:
    """Run a command until it ends or standard input closes, and return its exit status."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        while child.poll() is None:
            if select.select([sys.stdin.fileno()], [], [], POLL_S)[0]:
                break
    finally:
        child.terminate()
        try:
            child.wait(END_S)
        except subprocess.TimeoutExpired:
            child.kill()
    return child.wait()


if __name__ == "__main__":
    sys.exit(keep(sys.argv[1:]))
