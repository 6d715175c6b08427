"""Warn when non-daemon threads of the user's code keep a finished command alive."""

from __future__ import annotations

import sys
import threading
import time

PATIENCE_S = 5.0
"""Seconds for which the interpreter's end may wait for threads without a word."""
NAME = "raygpu-leftover-threads"


def watch() -> None:
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
