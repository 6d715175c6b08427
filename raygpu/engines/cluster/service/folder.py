"""The folder of this user's service: its address, its socket, its lock and its output, for nobody else to read.

It lies in the user's runtime directory, XDG_RUNTIME_DIR, else beside the sessions of the user's local Rays.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from raygpu.engines.cluster.ray_files import SESSIONS
from raygpu.records.scratch import lock_file, private_folder
from raygpu.records.whole_files import write_private

ADDRESS, SOCKET, LOCK, OUTPUT = "service.json", "socket", "lock", "service.log"
LONGEST = 107 - len("/raygpu/service/standby-1234567-123456")
"""Bytes of the longest runtime directory: the path of a socket has 107 at most."""


class ServiceFolder:
    """The folder of this user's service, made if need be. Raises OSError if there can be none that is the user's
    alone."""

    def __init__(self) -> None:
        private_folder(_parent())
        self.path = private_folder(_parent() / "service")
        self.socket = self.path / SOCKET
        self.output = self.path / OUTPUT

    @classmethod
    def existing(cls) -> ServiceFolder | None:
        """Return the folder if it is there: without one no service runs. Raises OSError as the folder itself does."""
        return cls() if (_parent() / "service").is_dir() else None

    def address(self) -> dict[str, Any] | None:
        """Return what the service wrote about itself; None without a service, or if others may have written it."""
        file = self.path / ADDRESS
        try:
            status = file.lstat()
            if status.st_uid != os.getuid() or status.st_mode & 0o077:
                return None
            service_address = json.loads(file.read_text())
        except (OSError, ValueError):
            return None
        return service_address if isinstance(service_address, dict) else None

    def write_address(self, values: Mapping[str, Any]) -> None:
        """Write the address in one step, for its owner alone."""
        write_private(self.path / ADDRESS, json.dumps(dict(values)).encode())

    def locked(self) -> int | None:
        """Return the descriptor of the lock, which is held until it is closed; None if a living service holds it."""
        return lock_file(self.path / LOCK)

    def clean(self) -> bool:
        """Delete the files of a service that has ended; return whether there is none that lives."""
        lock = self.locked()
        if lock is None:
            return False
        with os.fdopen(lock):
            self.delete()
        return True

    def delete(self) -> None:
        """Delete the address, the socket and what commands left; the output stays."""
        for file in (self.path / ADDRESS, self.socket, *self.path.glob("command-*"), *self.path.glob("standby-*")):
            with suppress(OSError):
                file.unlink()


def _parent() -> Path:
    """Return the folder that the service's folder lies in."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and len(os.fsencode(runtime)) <= LONGEST:
        with suppress(OSError):
            if os.stat(runtime).st_uid == os.getuid():
                return Path(runtime) / "raygpu"
    return Path(SESSIONS.format(os.getuid()))
