"""A CUDA MPS daemon of the benchmark's own, and what it says of its clients."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def mps_daemon() -> Iterator[dict[str, str]]:
    """A control daemon of our own; what its clients need in their environment. Raises RuntimeError and OSError."""
    control = _mps_control()
    folder = Path(tempfile.mkdtemp(prefix="raygpu-mps-"))
    own = {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "log")}
    for path in own.values():
        Path(path).mkdir()
    try:
        # Not captured: the daemon would keep the pipes, and whoever reads them, open.
        with (folder / "start").open("w+") as output:
            done = subprocess.run(
                [control, "-d"],
                env=os.environ | own,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=30,
            )
            output.seek(0)
            if done.returncode:
                raise RuntimeError(f"nvidia-cuda-mps-control -d: status {done.returncode}: {output.read().strip()}")
        try:
            yield own
        finally:
            mps_asked(own, "quit")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _mps_control() -> str:
    """Raises RuntimeError."""
    name = "nvidia-cuda-mps-control"
    found = shutil.which(name) or shutil.which(name, path="/usr/local/nvidia/bin:/usr/bin")
    if found is None:
        raise RuntimeError(f"{name} is not installed")
    return found


def mps_asked(environment: Mapping[str, str], question: str) -> str:
    """The daemon's answer, or nothing."""
    try:
        done = subprocess.run(
            [_mps_control()],
            env=os.environ | environment,
            input=question + "\n",
            capture_output=True,
            text=True,
            timeout=20,
        )
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout.strip()


def mps_clients(environment: Mapping[str, str]) -> str:
    """How many processes use the daemon. Raises RuntimeError if none does: CUDA says nothing when it goes without."""
    servers = mps_asked(environment, "get_server_list").split()
    clients = [client for pid in servers for client in mps_asked(environment, f"get_client_list {pid}").split()]
    if not clients:
        raise RuntimeError("the daemon runs, and no process became its client")
    return f"{len(clients)} clients of {len(servers)} server{'s' if len(servers) > 1 else ''}"


def mps_log(environment: Mapping[str, str]) -> str:
    """The last lines of the daemon's logs."""
    lines: list[str] = []
    for path in sorted(Path(environment["CUDA_MPS_LOG_DIRECTORY"]).glob("*.log")):
        lines += path.read_text(errors="replace").splitlines()[-3:]
    return f"; its log: {' | '.join(lines)}" if lines else ""
