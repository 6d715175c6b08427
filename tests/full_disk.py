"""A disk that is filled for a while, as another program would fill it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
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
