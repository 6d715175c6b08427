"""The environment of a command, taken over by the service's workers when they get their first task of it.

Ray binds a worker to a job with its first task, and ends it with the job. So a worker that has imported its libraries
before takes over environment, working directory and umask of one command alone, before it loads any of a user's code.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from raygpu.engines.cluster.ray_environment import environment_of
from raygpu.engines.cluster.service.fingerprint import AT_START
from raygpu.records.whole_files import write_private

ADDRESS = "RAY_ADDRESS"
KEPT = (*AT_START, "CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Beginnings of the variables of a worker that stay: equal in a command that may use the service, or set by Ray."""


def write(path: Path) -> None:
    """Write this process' environment, working directory and umask into a file for its owner alone."""
    umask = os.umask(0o077)
    os.umask(umask)
    values = {"environment": dict(os.environ), "folder": os.getcwd(), "umask": umask}
    write_private(path, json.dumps(values).encode())


@dataclass(frozen=True, slots=True)
class TakenOver:
    """The environment of a command in a file; Ray calls `_apply` in each worker before the first task of the job."""

    file: str

    def _apply(self) -> None:
        """Take the environment over. Raises OSError if the command has ended already."""
        process_state = json.loads(Path(self.file).read_text())
        wanted, removed = changes(process_state["environment"], os.environ, environment_of(os.getppid()))
        os.environ.update(wanted)
        for name in removed:
            del os.environ[name]
        os.umask(process_state["umask"])
        os.chdir(process_state["folder"])
        tempfile.tempdir = None  # which was taken from the variables
        time.tzset()


def changes(
    command: Mapping[str, str], own: Mapping[str, str], started_with: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Return the variables that a worker sets, and those that it removes.

    command: variables of the command. own: those of the worker, some of which Ray has set for it. started_with: those
    that the service was started with.
    """
    wanted = {
        name: value
        for name, value in command.items()
        if (name == ADDRESS or not name.startswith(KEPT)) and own.get(name) != value
    }
    removed = [name for name in own if name in started_with and name not in command and not name.startswith(KEPT)]
    return wanted, removed
