"""A disk that is filled for a while, as another program would fill it, and a file that takes no more."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

FULL_S = 8.0


def fill_for_a_while(disk: Path, begin: Callable[[], object]) -> tuple[threading.Thread, threading.Event]:
    """Fill a small disk in a thread, once `begin` says so; the event is set when it is full."""
    full = threading.Event()

    def fill() -> None:
        while not begin():
            time.sleep(0.1)
        with (disk / "filler").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(2**16))
            except OSError:
                full.set()
        time.sleep(FULL_S)
        (disk / "filler").unlink()

    thread = threading.Thread(target=fill, daemon=True)
    thread.start()
    return thread, full


@contextmanager
def full_for(path: Path, room: int) -> Iterator[None]:
    """Let a file take only so many bytes more inside: a write of more is cut there, and the next one fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
