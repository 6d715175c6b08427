"""How a command ends when it is told to, and where its output goes."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM, as Kubernetes and batch systems send it, ends a command as cleanly as Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def as_interrupt(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGTERM, as_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def output_to_stderr(wanted: bool) -> Iterator[TextIO]:
    """Whatever is printed meanwhile, by anybody's code, goes to standard error; yields the real standard output."""
    if not wanted:
        yield sys.stdout
        return
    shown = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        yield shown


@contextmanager
def handlers_kept() -> Iterator[None]:
    """What handled signals before handles them again: Tune sets its own and leaves them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGUSR1)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
