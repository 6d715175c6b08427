"""A process that waits in the service with everything imported, and becomes the next command of a terminal.

python -m raygpu.engines.cluster.service.standby SOCKET       started by the service; ends when standard input closes

It takes over arguments, environment, working directory, paths, umask and the three standard streams of the command, and
ends with it. It is used once, so that no state of a command is seen by another one.
"""

from __future__ import annotations

import array
import importlib
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from raygpu.engines.cluster import ray_environment
from raygpu.engines.cluster.service.connection import Connection

IMPORTED = (
    *("ray", "torch", "ray.tune", "raygpu.__main__", "raygpu.sweep", "raygpu.train", "raygpu.pack", "raygpu.balance"),
    *("raygpu.place", "raygpu.engines.tune.engine", "raygpu.engines.train.production", "raygpu.tracking.session"),
    *("raygpu.tracking.client", "raygpu.engines.profiling.sweep_probe", "raygpu.training.fused.groups"),
    *(
        "raygpu.engines.cluster.prometheus",
        "raygpu.engines.cluster.service.service_cluster",
        "raygpu.training.torch.optimizers",
    ),
    *("mlflow", "mlflow.tracking", "mlflow.store.tracking.sqlalchemy_store", "sqlalchemy.dialects.sqlite", "sklearn"),
    *("sklearn.datasets", "matplotlib.figure", "raygpu.training.fused.dry_run", "raygpu.training.quick_estimate"),
    *("torch.fx.experimental.proxy_tensor", "torch.fx.experimental.symbolic_shapes", "torch._decomp"),
)
"""Modules that a command imports before its first training step; none is the user's."""
STREAMS = 3


def main(argv: list[str]) -> int:
    """Import everything, wait for a command at the socket, become it, and return its exit code."""
    ray_environment.prepare(local=True)
    for name in IMPORTED:
        with suppress(ImportError):  # a library that is not installed is not needed
            importlib.import_module(name)
    path = Path(argv[0])
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(1)
        readable, _, _ = select.select([listener, sys.stdin], [], [])
        if listener not in readable:
            return 0
        connection = Connection(listener.accept()[0])
    path.unlink(missing_ok=True)
    return _become(connection)


def _become(connection: Connection) -> int:
    """Become the command that has connected, and send it its exit code."""
    streams = array.array("i")
    message, control, _, _ = connection.socket.recvmsg(1, socket.CMSG_SPACE(STREAMS * streams.itemsize))
    for level, kind, data in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            streams.frombytes(data)
    command: dict[str, Any] | None = connection.receive(10.0) if message else None
    if command is None or len(streams) != STREAMS:
        return 1
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, buffering=1, encoding=command["encoding"], errors=errors, closefd=False)
        for number, mode, errors in ((0, "r", "strict"), (1, "w", command["errors"]), (2, "w", "backslashreplace"))
    )
    started_with = ray_environment.environment_of(os.getpid())
    variables = {name: value for name, value in os.environ.items() if name not in started_with}  # set by libraries
    os.environ.clear()
    os.environ.update(variables | command["environment"])
    ray_environment.prepare(local=True)
    os.chdir(command["folder"])
    os.umask(command["umask"])
    tempfile.tempdir = None  # which was taken from the service's variables
    time.tzset()
    sys.argv, sys.path[:] = command["argv"], command["path"]
    importlib.import_module("raygpu.records.clock").begin_call(command["age_s"])
    ended = threading.Event()
    threading.Thread(target=_end_with, args=(connection, ended), name="terminal", daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN if command["ignores_interrupts"] else signal.default_int_handler)
    code = 1
    try:
        code = importlib.import_module("raygpu.__main__").run(command["words"])
    finally:
        ended.set()
        sys.stdout.flush()
        sys.stderr.flush()
        with suppress(OSError):
            connection.send({"exit": code})
    return code


def _end_with(connection: Connection, ended: threading.Event) -> None:
    """Kill this process once the terminal's process was killed: that one can ask for no orderly end any more."""
    with suppress(OSError, ValueError):
        while connection.receive() is not None:
            pass
    if not ended.is_set():
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
