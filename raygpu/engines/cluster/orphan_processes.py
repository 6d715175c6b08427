"""End processes that trials have started in sessions of their own: they outlive Ray's workers.

Ray ends a worker's own processes and their group. A process of another session is known by a variable that it has
inherited from the Ray that its trial ran in.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from raygpu.engines.cluster import ray_environment
from raygpu.engines.cluster.ray_environment import environment_of

VARIABLE = "RAYGPU_LOCAL_RAY"
"""Variable in the environment of a local Ray's processes, and of all that they start."""
GRACE_S = 2.0
"""Seconds from SIGTERM to SIGKILL."""
LOOKS, LOOK_S = 2, 0.05
"""Number of looks that have to find no process, and the seconds between them: one that starts shows its environment
only once its program is loaded."""
_marks: list[str] = []


@contextmanager
def marked() -> Iterator[None]:
    """Mark the processes that are started meanwhile, and all that they will start."""
    _marks.append(uuid.uuid4().hex)
    with ray_environment.variable(VARIABLE, _marks[-1]):
        yield


def end() -> None:
    """End the marked processes that are in sessions of their own: SIGTERM, and SIGKILL after GRACE_S seconds."""
    marks, _marks[:] = list(_marks), []
    end_of(marks)


def mark() -> str | None:
    """Return the mark of the processes that are started now; None outside of `marked`."""
    return os.environ.get(VARIABLE)


def end_of(marks: list[str]) -> None:
    """End the processes with these marks that are in sessions of their own, as `end` does for those of this process."""
    deadline, signalled_pids, nothing = time.monotonic() + GRACE_S, set[int](), 0
    while marks and time.monotonic() < deadline:
        pids = _left(marks)
        _signal(set(pids) - signalled_pids, signal.SIGTERM)
        signalled_pids.update(pids)
        nothing = 0 if pids else nothing + 1
        if nothing == LOOKS:
            return
        time.sleep(LOOK_S)
    _signal(_left(marks), signal.SIGKILL)


def _left(marks: list[str]) -> list[int]:
    """Return the pids of the marked processes that are not in this process' session, as Ray's own are."""
    pids = []
    for name in os.listdir("/proc") if marks else ():
        if name.isdigit() and environment_of(int(name)).get(VARIABLE) in marks:
            with suppress(OSError):  # it has ended
                if os.getsid(int(name)) != os.getsid(0):
                    pids.append(int(name))
    return pids


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
