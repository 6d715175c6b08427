"""The exit of a command's process."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C or SIGTERM has ended."""


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
