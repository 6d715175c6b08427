"""A process with an MLflow client of its own, so that several CPU cores write to one SQLite file.

SQLite takes one writer at a time. But two thirds of what a run costs is Python's time before and after, which the
threads of one process cannot share.

    process = StoreProcess("sqlite:////home/ada/runs/mlflow.db")
    if process.ready(5.0):
        process.log_batch(run_id, metrics)          # as MlflowClient's

The process ends with the one that started it, or with `close`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, Pipe
from typing import Any

from raygpu.errors import TrackingError, one_line
from raygpu.tracking import client

LOOK_S = 10.0
"""Seconds between two looks at whether the process that started this one is still there."""
CLOSE_S = 5.0
"""Longest wait in seconds for the process' end; it may be within a call."""


class StoreProcess:
    """A client of an open store, in a process of its own, for one thread at a time."""

    def __init__(self, uri: str) -> None:
        """Start the process. uri: full URI of the store. Raises OSError."""
        self.is_lost = False
        """Whether the process has ended, or could not open the store: it takes no more calls."""
        self.cpu_s = 0.0
        """CPU time of all calls so far."""
        self.is_ready = False
        """Whether the store is open there."""
        path = os.pathsep.join(folder or os.getcwd() for folder in sys.path if isinstance(folder, str))
        self._pipe, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the command, which delivers what waits
                env={**os.environ, "PYTHONPATH": path},
            )
        self.pid = self._process.pid
        self._send(uri)  # not among the process' arguments, which every user of the machine sees

    def ready(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` for the open store; return whether calls are taken."""
        if not (self.is_ready or self.is_lost):
            try:
                if self._pipe.poll(timeout_s):
                    self.is_ready = self._pipe.recv()
                    self.is_lost = not self.is_ready
            except (EOFError, OSError):
                self.is_lost = True
        return self.is_ready and not self.is_lost

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a method of MLflow's client, called in the process."""
        if name.startswith("_"):
            raise AttributeError(name)
        return partial(self._call, name)

    def _call(self, name: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of the client. Raises TrackingError, also if the process ends meanwhile."""
        self._send((name, arguments, named))
        try:
            answer, fault, cpu_s = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise self._lost(error) from error
        self.cpu_s += cpu_s
        if fault is not None:
            raise fault
        return answer

    def _send(self, request: Any) -> None:
        try:
            self._pipe.send(request)
        except OSError as error:
            raise self._lost(error) from error

    def _lost(self, error: Exception) -> TrackingError:
        self.is_lost = True
        return TrackingError(f"tracking: a process that writes to the store has ended: {one_line(error)}")

    def close(self) -> None:
        """End the process, after the call that it is in."""
        self.is_lost = True
        self._pipe.close()
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def serve(pipe: Connection) -> None:
    """Open the store that the first message names, and make calls of its client until the other side is gone."""
    parent = os.getppid()
    uri: str = pipe.recv()
    try:
        mlflow = client.another(uri)
    except Exception:  # noqa: BLE001 - the writer's thread tells what is wrong with the store
        return pipe.send(False)
    pipe.send(True)
    while True:
        while not pipe.poll(LOOK_S):
            if os.getppid() != parent:
                return  # which a process that it forked may hide: that has the pipe, too
        name, arguments, named = pipe.recv()
        began_s, answer, fault = time.process_time(), None, None
        try:
            answer = getattr(mlflow, name)(*arguments, **named)
        except Exception as error:  # noqa: BLE001 - of MLflow and all below
            fault = client.fault(uri, error)
        pipe.send((answer, fault, time.process_time() - began_s))


if __name__ == "__main__":
    with suppress(EOFError, OSError):
        serve(Connection(int(sys.argv[1])))
    os._exit(0)  # MLflow's libraries take a while to unload
