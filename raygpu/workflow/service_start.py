"""Start this user's service in the background or here, ask for its state, and end it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

from raygpu.cli.formatting import duration
from raygpu.devices import host
from raygpu.devices.nvml import Gpu, gpus
from raygpu.devices.selection import select
from raygpu.engines.cluster.service.client import NotUsed, asked
from raygpu.engines.cluster.service.folder import ServiceFolder
from raygpu.engines.cluster.service.process import serve
from raygpu.errors import BadInput, RaygpuError

IDLE_MINUTES = 30
START_S = 240.0
"""Seconds for the start, longer than Ray's own limits on a cold machine."""
END_S = 30.0
POLL_S = 0.1


def start_in_foreground(idle_minutes: float, workers: int | None) -> None:
    """Start the service in this process and return when it has ended. Raises BadInput, RaygpuError."""
    serve(_gpus(), workers=workers, idle_s=60 * idle_minutes, say=_say)


def start_in_background(idle_minutes: float, workers: int | None) -> list[str]:
    """Start the service in a process of its own, wait until it is ready, and return lines on it.

    Raises BadInput if one runs already, RaygpuError if it does not start.
    """
    folder = _folder()
    if (running := state()) is not None:
        raise BadInput(f"up: a service runs already, pid {running['pid']}; raygpu down ends it")
    began = time.monotonic()
    command = [sys.executable, "-m", "raygpu.up", "--foreground", "--idle-minutes", f"{idle_minutes:g}"]
    if workers is not None:
        command += ["--workers", str(workers)]
    with os.fdopen(os.open(folder.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        status = _ready(process, folder, began + START_S)
    except BaseException:
        with suppress(ProcessLookupError):
            process.terminate()
        raise
    took, many = time.monotonic() - began, len(status["gpus"])
    return [
        f"service: ready after {took:.1f} s, with {many} GPU{'s' if many != 1 else ''}"
        f" ({', '.join(dict.fromkeys(status['gpus']))}); its {status['workers']} workers import their libraries now",
        f"ends after {duration(60 * idle_minutes)} without a command, or by: raygpu down",
    ]


def state() -> dict[str, Any] | None:
    """Return the state of this user's service; None where none runs. Raises RaygpuError if it does not answer."""
    folder = _folder()
    status = _asked(folder, {"ask": "status"})
    return None if status is None else status | {"output": str(folder.output)}


def end(*, now: bool) -> str:
    """End the service, and return a line on it. now: whether commands that use it end with it. Raises RaygpuError."""
    folder = _folder()
    status = _asked(folder, {"ask": "end", "now": now})
    if status is None:
        return "service: none runs"
    users = [user["what"] for user in (*status["used_by"], *status["waiting"])]
    if users and not now:
        return f"service: ends after {', '.join(users)}; raygpu down --now ends it with them"
    deadline = time.monotonic() + END_S
    while not folder.clean():
        if time.monotonic() > deadline:
            raise RaygpuError(f"service: has not ended for {END_S:g} s; {_by_force(folder)}")
        time.sleep(POLL_S)
    return "service: ended"


def _ready(process: subprocess.Popen[bytes], folder: ServiceFolder, deadline: float) -> dict[str, Any]:
    """Wait until a service answers, and return its state. Raises RaygpuError if it ends or takes too long."""
    while True:
        if process.poll() is not None:
            lines = folder.output.read_text(errors="replace").strip().splitlines()
            raise RaygpuError(lines[-1] if lines else f"the service ended with status {process.returncode}")
        address = folder.address()
        if address is not None and address.get("pid") == process.pid and (status := state()) is not None:
            return status
        if time.monotonic() > deadline:
            raise RaygpuError(f"the service was not ready after {START_S:g} s; its output: {folder.output}")
        time.sleep(POLL_S)


def _asked(folder: ServiceFolder, request: dict[str, Any]) -> dict[str, Any] | None:
    """Return the service's answer; None where none runs. Raises RaygpuError if it does not answer."""
    try:
        return asked(folder, request)
    except NotUsed as fault:
        raise RaygpuError(f"service: {fault}; {_by_force(folder)}") from fault


def _by_force(folder: ServiceFolder) -> str:
    address = folder.address()
    return f"kill {address['pid']} ends it" if address is not None and "pid" in address else f"see {folder.output}"


def _gpus() -> list[Gpu]:
    """Return the GPUs of the service: those that are visible and may compute. Raises BadInput."""
    all_gpus = gpus()
    chosen = select(all_gpus, "all", os.environ.get("CUDA_VISIBLE_DEVICES") if all_gpus else None)
    return host.computing(chosen)[0]


def _folder() -> ServiceFolder:
    try:
        return ServiceFolder()
    except OSError as error:
        raise RaygpuError(f"service: {error}") from error


def _say(line: str) -> None:
    """Print a line with the time."""
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}", flush=True)
