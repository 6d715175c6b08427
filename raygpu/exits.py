"""How a command ends when it is told to."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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
