"""The state of the GPUs of this machine and of their processes, for `raygpu gpus`."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import psutil

from raygpu import scratch
from raygpu.devices import nvml
from raygpu.devices.nvml import Clock, Gpu, Memory
from raygpu.devices.rgu import rgu
from raygpu.devices.telemetry import GpuWindow, Telemetry
from raygpu.errors import BadInput
from raygpu.records import activity
from raygpu.records.activity import Activity

WINDOW_S = 0.5
"""Seconds over which the use of a GPU is measured."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process on a GPU; None for what is not known, as of another user's process, or of one outside a container."""

    pid: int
    gpu_memory_gib: float | None
    user: str | None
    command: str | None
    activity: Activity | None
    """The training of a worker of raygpu."""


@dataclass(frozen=True, slots=True)
class GpuStatus:
    """A GPU, its use over the last moment, and its processes."""

    gpu: Gpu
    memory: Memory | None
    window: GpuWindow
    clock: Clock
    rgu: float | None
    """Worth in Reference GPU Units."""
    processes: tuple[GpuProcess, ...]


@dataclass(frozen=True, slots=True)
class MachineStatus:
    """The GPUs of this machine, and the trainings of raygpu that are on none of them."""

    gpus: tuple[GpuStatus, ...]
    elsewhere: tuple[GpuProcess, ...]
    """On a simulated GPU, or in a container whose processes NVML knows by other pids."""


def machine_status(gpus: Sequence[Gpu], window_s: float = WINDOW_S) -> MachineStatus:
    """Return the state of these GPUs, measured over `window_s` seconds."""
    with ExitStack() as stack:
        watched = {gpu.uuid: stack.enter_context(Telemetry(gpu.uuid)) for gpu in gpus}
        if gpus:
            time.sleep(window_s)
    noted = activity.living()
    statuses = tuple(_status(gpu, watched[gpu.uuid].reading(), noted) for gpu in gpus)
    placed = {process.pid for status in statuses for process in status.processes}
    elsewhere = tuple(_process(pid, None, each) for pid, each in sorted(noted.items()) if pid not in placed)
    return MachineStatus(statuses, elsewhere)


def _status(gpu: Gpu, window: GpuWindow, noted: dict[int, Activity]) -> GpuStatus:
    held = nvml.process_memory(gpu.uuid) or {}
    return GpuStatus(
        gpu=gpu,
        memory=nvml.memory(gpu.uuid),
        window=window,
        clock=nvml.clock(gpu.uuid),
        rgu=rgu(gpu.name, gpu.memory_gib),
        processes=tuple(_process(pid, gib, noted.get(pid)) for pid, gib in sorted(held.items())),
    )


def _process(pid: int, gib: float | None, noted: Activity | None) -> GpuProcess:
    try:
        process = psutil.Process(pid)
        user, command = process.username(), " ".join(process.cmdline()).strip() or process.name()
    except psutil.Error:
        user, command = None, None
    return GpuProcess(pid, gib, user, command, noted)


def emptiest(status: MachineStatus, number: int, taken: Sequence[str] = ()) -> list[Gpu]:
    """Return the GPUs with the fewest processes, then the least use, then the most free memory.

    taken: UUIDs of GPUs that another `--pick` has chosen; they come last. Raises BadInput if there are fewer GPUs.
    """
    if number > len(status.gpus):
        raise BadInput(f"--pick: read {number}; this machine shows {len(status.gpus)} GPUs")

    def _fullness(each: GpuStatus) -> tuple[bool, int, float, float]:
        window = each.window
        use = window.sm_util_pct if window.sm_util_pct is not None else window.util_pct
        free_gib = each.memory.free_gib if each.memory is not None else 0.0
        return each.gpu.uuid in taken, len(each.processes), use or 0.0, -free_gib

    return [each.gpu for each in sorted(status.gpus, key=_fullness)[:number]]


def taken_by_picks(gpus: Sequence[Gpu]) -> list[str]:
    """Return the UUIDs of GPUs that a `--pick` of this user has chosen whose command still runs. Raises OSError."""
    found = []
    for gpu in gpus:
        if (lock := _lock(gpu)) is None:
            found.append(gpu.uuid)
        else:
            os.close(lock)
    return found


def take(gpus: Sequence[Gpu]) -> None:
    """Take GPUs for this process and the program that replaces it, until they end. Raises OSError."""
    for gpu in gpus:
        if (lock := _lock(gpu)) is not None:
            os.set_inheritable(lock, True)


def _lock(gpu: Gpu) -> int | None:
    """Return a locked file that stands for a GPU; None where another process holds it. Raises OSError."""
    file = os.open(scratch.shared_folder() / f"pick-{gpu.uuid}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file
