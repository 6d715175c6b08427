"""The daemon of the service: it keeps workers and a process for the next command ready, and leases GPUs to commands."""

from __future__ import annotations

import itertools
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from raygpu.engines.cluster import orphan_processes
from raygpu.engines.cluster.cluster import Cluster, head_answers
from raygpu.engines.cluster.service import log_files
from raygpu.engines.cluster.service.connection import PROTOCOL, Connection
from raygpu.engines.cluster.service.fingerprint import Fingerprint
from raygpu.engines.cluster.service.folder import ServiceFolder
from raygpu.engines.cluster.service.gpu_leases import GpuLeases, GpuRequest
from raygpu.engines.cluster.service.pool import Pool
from raygpu.errors import one_line

TICK_S = 0.5
FILL_S = 2.0
"""Seconds between two looks at the pool, and from the last change of its users to the first."""
PRUNE_S = 60.0
MOST_FAULTS = 5
"""Number of looks in sequence at which Ray may not answer before the service ends, and of processes in sequence that
may end before they wait for a command before no further one is started."""
STANDBY = "raygpu.engines.cluster.service.standby"
"""Program of the process that waits for a command."""
_numbers = itertools.count(1)


class ServiceDaemon:
    """The service in this process, once Ray runs: `run` returns when it has ended its use.

    say: takes a line for the service's output. idle_s: seconds without a command after which it ends.
    """

    def __init__(
        self,
        folder: ServiceFolder,
        cluster: Cluster,
        fingerprint: Fingerprint,
        pool: Pool,
        ray: Mapping[str, Any],
        idle_s: float,
        say: Callable[[str], None],
    ) -> None:
        self.folder, self.cluster, self.pool, self.say = folder, cluster, pool, say
        self.leases = GpuLeases(len(cluster.devices))
        self.ended = False
        self._ray, self._idle_s = dict(ray), idle_s
        self._fingerprint = fingerprint
        self._begun = datetime.now(UTC).isoformat(timespec="seconds")
        self._selector = selectors.DefaultSelector()
        self._connections: dict[int, Connection] = {}
        """Connections by their file descriptor, which is a command's number in the leases."""
        self._standbys: dict[int, StandbyProcess] = {}
        """Waiting processes that were given away, until they have become a command, by the connection's number."""
        self._standby: StandbyProcess | None = None
        """Process that waits for the next command."""
        self._marks: dict[int, str] = {}
        """Mark of what each command's trials start, by its number."""
        self._draining = False
        self._used = time.monotonic()
        """Moment of the last use."""
        self._filled = self._pruned = 0.0
        self._filling = threading.Thread(target=self._fill)
        """Thread that looks after the workers: Ray may take its time to answer, and commands are not to wait for it."""
        self._idle_workers = 0
        self._faults = self._standby_faults = 0

    def run(self) -> None:
        """Serve commands until the service is told to end, has had none for its idle time, or has lost its Ray."""
        listener = self._listen()
        try:
            self.folder.write_address(
                {
                    "pid": os.getpid(),
                    "protocol": PROTOCOL,
                    "begun": self._begun,
                    "fingerprint": self._fingerprint.as_json(),
                }
            )
            self.say(f"ready: {self.leases.line()}; {self._ray['gcs_address']}")
            while not self.ended:
                for key, _ in self._selector.select(TICK_S):
                    if key.fileobj is listener:
                        self._accept(listener)
                    else:
                        self._read(key.fd)
                self._look_after()
        finally:
            listener.close()
            self.folder.delete()
            for connection in self._connections.values():
                connection.close()
            for standby in (self._standby, *self._standbys.values()):
                if standby is not None:
                    standby.end()

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with suppress(FileNotFoundError):
            self.folder.socket.unlink()
        before = os.umask(0o077)
        try:
            listener.bind(str(self.folder.socket))
        finally:
            os.umask(before)
        listener.listen(64)
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        return listener

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):  # another user's process, or one that has gone again
            connection = Connection(listener.accept()[0])
            number = connection.socket.fileno()
            self._connections[number] = connection
            self._selector.register(connection.socket, selectors.EVENT_READ)

    def _read(self, number: int) -> None:
        """Answer one message, or forget a command whose connection has closed."""
        connection = self._connections[number]
        try:
            message = connection.receive(TICK_S)
            if message is not None:
                self._answer(number, connection, message)
                return
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.say(f"pid {connection.pid}: {one_line(error)}")
        self._forget(number)

    def _answer(self, number: int, connection: Connection, message: Mapping[str, Any]) -> None:
        asked = message["ask"]
        if asked == "status":
            connection.send(self.status())
        elif asked == "end":
            self._draining = True
            self.ended = bool(message.get("now")) or not (self.leases.taken or self.leases.waiting)
            connection.send(self.status())
        elif asked == "standby":
            connection.send(self._given(number))
        elif asked == "use":
            self._use(number, connection, message)
        else:
            raise ValueError(f"read {asked!r}")

    def _given(self, number: int) -> dict[str, Any]:
        """Give the waiting process away, and return where it listens; nothing if there is none."""
        standby = self._standby
        if standby is None or self._draining or not standby.is_ready:
            return {}
        self._standby, self._standbys[number] = None, standby
        self._filled = self._used = time.monotonic()
        return {"pid": standby.process.pid, "socket": standby.socket.name}

    def _use(self, number: int, connection: Connection, message: Mapping[str, Any]) -> None:
        if self._draining:
            connection.send({"refused": "it ends after the commands that use it"})
            return
        request, mark = GpuRequest.of(message["request"]), str(message["mark"])
        if number in self._marks or not mark.isalnum():
            raise ValueError(f"read {mark!r}")
        self._marks[number] = mark
        part = self.leases.ask(number, request)
        self.say(f"{request.what} (pid {connection.pid}): {'waits' if part is None else f'{float(part):g} GPUs'}")
        if part is None:
            connection.send({"waiting": self.leases.line()})
        else:
            connection.send(self._grant(part))

    def _grant(self, part: Any) -> dict[str, Any]:
        return {"part": str(part), "num_gpus": self.leases.num_gpus, "workers": self._idle_workers, **self._ray}

    def _forget(self, number: int) -> None:
        """Close a connection, end what its command's trials have left behind, and give its part to others."""
        connection = self._connections.pop(number)
        self._selector.unregister(connection.socket)
        connection.close()
        standby = self._standbys.pop(number, None)
        if standby is not None and standby.is_ready:  # its command did not come
            standby.end()
        mark = self._marks.pop(number, None)
        if mark is None:
            return
        orphan_processes.end_of([mark])
        for file in self.folder.path.glob(f"command-*-{mark}"):  # of a command that was killed
            with suppress(OSError):
                file.unlink()
        self._used = time.monotonic()
        self._filled = self._used  # its workers end first
        granted = self.leases.leave(number)
        self.say(f"a command has ended; {self.leases.line()}")
        for waiting, part in granted:
            with suppress(OSError):  # it has gone meanwhile; its connection tells so next
                self._connections[waiting].send(self._grant(part))

    def status(self) -> dict[str, Any]:
        """Return the state of the service as a value of JSON."""
        leases, waiting = self.leases.taken, self.leases.waiting
        used_by = [
            {"what": request.what, "pid": self._connections[number].pid, "gpus": float(part)}
            for number, (request, part) in leases.items()
        ]
        left_s = None if leases or waiting else max(0.0, self._idle_s - (time.monotonic() - self._used))
        return {
            "pid": os.getpid(),
            "begun": self._begun,
            "num_gpus": self.leases.num_gpus,
            "free_gpus": float(self.leases.free),
            "gpus": [device.name for device in self.cluster.devices],
            "idle_workers": self.pool.count()[0],
            "workers": self.pool.size,
            "standby": self._standby is not None and self._standby.is_ready,
            "used_by": used_by,
            "waiting": [
                {"what": request.what, "pid": self._connections[number].pid} for number, request in waiting.items()
            ],
            "ends_in_s": left_s,
            "ending": self._draining,
            "logs": self._ray["logs"],
            "dashboard": self._ray["dashboard"],
        }

    def _look_after(self) -> None:
        """Fill the pool, prune the logs, and end the service that nobody has used for its idle time."""
        now = time.monotonic()
        is_used = bool(self.leases.taken or self.leases.waiting)
        if is_used:
            self._used = now
        elif self._draining or now - self._used > self._idle_s:
            self.say("told to end" if self._draining else f"not used for {self._idle_s / 60:g} minutes: ends")
            self.ended = True
        # Beside a command that has all GPUs nobody else can begin, and a start of workers would only slow it down.
        if not self.ended and now - self._filled > FILL_S and (self.leases.free > 0 or not is_used):
            self._filled = now
            if not self._filling.is_alive():
                self._filling = threading.Thread(target=self._fill, name="pool", daemon=True)
                self._filling.start()
            self._keep_standby()
        if now - self._pruned > PRUNE_S:
            self._pruned = now
            log_files.prune(Path(self._ray["logs"]))

    def _keep_standby(self) -> None:
        """Have a process wait for the next command, unless one after the other fails."""
        if self._standby is not None and not self._standby.has_ended:
            if self._standby.is_ready:
                self._standby_faults = 0
            return
        self._standby_faults += self._standby is not None
        self._standby = None
        if self._standby_faults < MOST_FAULTS:
            self._standby = StandbyProcess(self.folder)
        elif self._standby_faults == MOST_FAULTS:
            self._standby_faults += 1
            self.say(f"{MOST_FAULTS} processes in sequence ended before they waited for a command: none waits any more")

    def _fill(self) -> None:
        try:
            if not head_answers():
                raise RuntimeError("Ray's head does not answer")
            self._idle_workers = self.pool.fill()
            self._faults = 0
        except Exception as error:  # noqa: BLE001 - whatever Ray raises: it is tried again
            self._faults += 1
            self.say(f"the workers cannot be looked at: {one_line(error)}")
            self.ended = self._faults >= MOST_FAULTS


class StandbyProcess:
    """A process that imports what a command needs, and then waits for one at a socket of its own."""

    def __init__(self, folder: ServiceFolder) -> None:
        self.socket = folder.path / f"standby-{os.getpid()}-{next(_numbers)}"
        before = os.umask(0o077)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", STANDBY, str(self.socket)], stdin=subprocess.PIPE, start_new_session=True
            )
        finally:
            os.umask(before)

    @property
    def is_ready(self) -> bool:
        """Return whether the process waits for a command, and has not become one yet."""
        return self.process.poll() is None and self.socket.exists()

    @property
    def has_ended(self) -> bool:
        """Return whether the process has ended."""
        return self.process.poll() is not None

    def end(self) -> None:
        """End the process while it waits; one that has become a command is left alone."""
        if self.process.stdin is not None:
            self.process.stdin.close()
