"""Run a program that ends with the process that started it, however that process ends: killed, crashed or done.

python process_guard.py PROGRAM ARGUMENTS...       ends the program when standard input closes

Standard input is a pipe whose other end the starting process holds, so that the system closes it in every case.
The guard is run by its path, and imports nothing but the standard library. In the starting process:

process = GuardedProcess(guarded(["PROGRAM"]), "output", os.environ)
process.ask_to_end()
process.wait()
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

POLL_S = 0.5
END_S = 10.0
"""Seconds that the program has to end after SIGTERM, before it is killed."""
GUARD_END_S = END_S + 5.0
"""Seconds that the guard itself has to end."""
RAY_START = (sys.executable, "-m", "ray.scripts.scripts", "start")
"""Words of `ray start`, without its flags."""


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


def guarded(command: Sequence[str]) -> list[str]:
    """Return the words that run a command under the guard."""
    # -P: the guard's folder has modules that are called as some of the standard library's.
    return [sys.executable, "-P", __file__, *command]


class GuardedProcess:
    """A process that ends when its standard input closes: the guard, or a program that starts one elsewhere."""

    def __init__(self, words: Sequence[str], output: str | os.PathLike[str], variables: Mapping[str, str]) -> None:
        """Start the process. output: file that its output is added to. variables: its environment."""
        with open(output, "ab") as file:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=variables,
                start_new_session=True,  # Ctrl-C is for the starting process to answer
            )

    @property
    def status(self) -> int | None:
        """Return the exit status; None while the process runs."""
        return self._process.poll()

    def ask_to_end(self) -> None:
        """Close the process' standard input, and return at once."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()

    def wait(self) -> None:
        """Wait until the process has ended; kill it after GUARD_END_S seconds."""
        try:
            self._process.wait(GUARD_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


if __name__ == "__main__":
    sys.exit(keep(sys.argv[1:]))
