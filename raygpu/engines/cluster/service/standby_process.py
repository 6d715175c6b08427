"""The waiting process of the service, as the service sees it."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

from raygpu.engines.cluster.service.folder import ServiceFolder

MODULE = "raygpu.engines.cluster.service.standby"
_numbers = itertools.count(1)


class StandbyProcess:
    """A process that imports what a command needs, and then waits for one at a socket of its own."""

    def __init__(self, folder: ServiceFolder) -> None:
        self.socket = folder.path / f"standby-{os.getpid()}-{next(_numbers)}"
        before = os.umask(0o077)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", MODULE, str(self.socket)], stdin=subprocess.PIPE, start_new_session=True
            )
        finally:
            os.umask(before)

    @property
    def is_ready(self) -> bool:
        """Whether it waits for a command, and has not become one yet."""
        return self.process.poll() is None and self.socket.exists()

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self.process.poll() is not None

    def end(self) -> None:
        """End it while it waits; one that has become a command is left alone."""
        if self.process.stdin is not None:
            self.process.stdin.close()
