"""The exit of a command's process, and a warning when non-daemon threads of the user's code keep it alive."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C or SIGTERM has ended."""
PATIENCE_S = 5.0
"""Seconds for which the interpreter's end may wait for threads without a word."""
NAME = "raygpu-leftover-threads"


def run_and_exit(main: Callable[[], int]) -> NoReturn:
    """Run a command as this process's program, and exit with its code.

    An interrupted process ends once the exit handlers have run, before the libraries in C++ end: where the signal has
    ended Ray's processes too, as systemd sends it to all, a thread that still waits for them ends this one by SIGSEGV.
    """
    codes: list[int] = []
    atexit.register(_end_if_interrupted, codes)  # registered first, so called last
    codes.append(main())
    sys.exit(codes[0])


def _end_if_interrupted(codes: list[int]) -> None:
    if codes != [INTERRUPTED]:
        return
    logging.shutdown()  # its own handler was registered before this one
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # whose reader has left; closed; none
            stream.flush()
    os._exit(INTERRUPTED)


def watch_exit() -> None:
    """Watch the end of this interpreter from a thread that does not hold it up; a second call does nothing."""
    if not any(thread.name == NAME for thread in threading.enumerate()):
        threading.Thread(target=_watch, name=NAME, daemon=True).start()


def _watch() -> None:
    main = threading.main_thread()
    main.join()  # it ends with the interpreter's wait for the others
    time.sleep(PATIENCE_S)
    names = [thread.name for thread in threading.enumerate() if not thread.daemon and thread is not main]
    if names:
        print(
            f"raygpu: done, but a thread of the experiment's code still runs: {', '.join(names)}; the command ends with"
            " it, or by Ctrl-C; threads that nothing waits for are made with daemon=True",
            file=sys.stderr,
            flush=True,
        )
