"""The state of a machine's GPUs and of their processes, and the emptiest of them, for `raygpu gpus`."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from raygpu.devices import host, mig, nvml
from raygpu.devices.nvml import Clock, Gpu, Memory
from raygpu.devices.rgu import rgu
from raygpu.devices.selection import shown
from raygpu.devices.telemetry import GpuWindow, Telemetry
from raygpu.errors import BadInput
from raygpu.planning.gpu_room import Room
from raygpu.records import activity, scratch
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
    """The training of the process, or of the worker of raygpu that has started it."""


@dataclass(frozen=True, slots=True)
class RoomOfTraining:
    """The room for more trainings of one kind."""

    name: str
    """The running sweep, or the file of the configuration."""
    room: Room


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
    rooms: tuple[RoomOfTraining, ...] = ()


@dataclass(frozen=True, slots=True)
class MachineStatus:
    """The GPUs of a machine, and the trainings of raygpu that are on none of them."""

    gpus: tuple[GpuStatus, ...]
    elsewhere: tuple[GpuProcess, ...]
    """On a simulated GPU, or in a container whose processes NVML knows by other pids."""
    cpu: str = ""
    """Name of the processor, by which profiles of a simulated GPU are kept."""
    host_free_gib: float = 0.0
    """Free memory of the machine."""
    machine: str = ""
    """The same for all processes that share this machine and its numbers of processes."""
    rooms: tuple[RoomOfTraining, ...] = field(default=())
    """Rooms of the simulated GPU, where there is no other."""


def visible_gpus(visible: str | None) -> list[Gpu]:
    """Return the GPUs and MIG instances of this machine that CUDA_VISIBLE_DEVICES shows. Raises BadInput.

    visible: None if the variable is not set.
    """
    all_gpus = mig.with_instances(nvml.gpus())
    return shown(all_gpus, visible) if all_gpus else []


def status_here(visible: str | None) -> MachineStatus:
    """Return the state of the GPUs that CUDA_VISIBLE_DEVICES shows. Raises BadInput."""
    return machine_status(visible_gpus(visible))


def machine_status(gpus: Sequence[Gpu], window_s: float = WINDOW_S) -> MachineStatus:
    """Return the state of these GPUs, measured over `window_s` seconds."""
    with ExitStack() as stack:
        watched = {gpu.uuid: stack.enter_context(Telemetry(gpu.uuid)) for gpu in gpus}
        if gpus:
            time.sleep(window_s)
    noted = activity.living()
    statuses = tuple(_status(gpu, watched[gpu.uuid].reading(), noted) for gpu in gpus)
    placed = {id(process.activity) for status in statuses for process in status.processes}
    elsewhere = tuple(_process(pid, None, each) for pid, each in sorted(noted.items()) if id(each) not in placed)
    return MachineStatus(statuses, elsewhere, host.cpu_name(), host.available_memory_gib(), _machine())


def _machine() -> str:
    """Return the boot of the kernel, the host's name and the namespace of process numbers."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {socket.gethostname()} {os.stat('/proc/self/ns/pid').st_ino}"


def _status(gpu: Gpu, window: GpuWindow, noted: dict[int, Activity]) -> GpuStatus:
    gib_by_pid = nvml.process_memory(gpu.uuid) or {}
    return GpuStatus(
        gpu=gpu,
        memory=nvml.memory(gpu.uuid),
        window=window,
        clock=nvml.clock(gpu.uuid),
        rgu=rgu(gpu.name, gpu.memory_gib),
        processes=tuple(_process(pid, gib, _noted_of(pid, noted)) for pid, gib in sorted(gib_by_pid.items())),
    )


def _noted_of(pid: int, noted: Mapping[int, Activity]) -> Activity | None:
    """Return the note of a process, or of the next of its parents that has one: a script is started by a worker."""
    if pid in noted or not noted:
        return noted.get(pid)
    try:
        parents = psutil.Process(pid).parents()
    except psutil.Error:
        return None
    return next((noted[parent.pid] for parent in parents if parent.pid in noted), None)


def _process(pid: int, gib: float | None, noted: Activity | None) -> GpuProcess:
    try:
        process = psutil.Process(pid)
        user, command = process.username(), " ".join(process.cmdline()).strip() or process.name()
    except psutil.Error:
        user, command = None, None
    return GpuProcess(pid, gib, user, command, noted)


def emptiest(status: MachineStatus, number: int, taken: Sequence[str] = ()) -> list[Gpu]:
    """Return the GPUs with the fewest processes, then the least use, then the most free memory.

    A GPU that is cut into MIG instances is none by itself, and its instances are; several at once are whole GPUs, since
    CUDA shows a process one instance alone. taken: UUIDs of GPUs that another `--pick` has chosen; they come last.
    Raises BadInput if there are fewer GPUs.
    """
    usable = [each for each in status.gpus if not each.gpu.mig and each.gpu.compute_mode != "prohibited"]
    if number > 1:
        whole_gpus = [each for each in usable if each.gpu.instance is None]
        if number > len(whole_gpus) and len(whole_gpus) < len(usable):
            raise BadInput(
                f"--pick: read {number}; whole GPUs here: {len(whole_gpus)}; of MIG instances CUDA shows one alone"
            )
        usable = whole_gpus
    if number > len(usable):
        raise BadInput(f"--pick: read {number}; this machine shows {len(usable)} GPUs that compute")

    def _fullness(each: GpuStatus) -> tuple[bool, int, float, float]:
        window = each.window
        use = window.sm_util_pct if window.sm_util_pct is not None else window.util_pct
        free_gib = each.memory.free_gib if each.memory is not None else 0.0
        return each.gpu.uuid in taken, len(each.processes), use or 0.0, -free_gib

    return [each.gpu for each in sorted(usable, key=_fullness)[:number]]


def pick(status: MachineStatus, number: int) -> list[Gpu]:
    """Take the emptiest GPUs for this process and the program that replaces it, until they end.

    Of several that pick at the same moment, each looks and takes alone. Raises BadInput and OSError.
    """
    with scratch.locked(scratch.shared_folder()):
        chosen = emptiest(status, number, taken_by_picks([each.gpu for each in status.gpus]))
        take(chosen)
    return chosen


def taken_by_picks(gpus: Sequence[Gpu]) -> list[str]:
    """Return the UUIDs of GPUs that a `--pick` of this user has chosen whose command still runs. Raises OSError."""
    uuids = []
    for gpu in gpus:
        if (lock := _lock(gpu)) is None:
            uuids.append(gpu.uuid)
        else:
            os.close(lock)
    return uuids


def take(gpus: Sequence[Gpu]) -> None:
    """Take GPUs for this process and the program that replaces it, until they end. Raises OSError."""
    for gpu in gpus:
        if (lock := _lock(gpu)) is not None:
            os.set_inheritable(lock, True)


def _lock(gpu: Gpu) -> int | None:
    """Return a locked file that stands for a GPU; None where another process holds it. Raises OSError."""
    return scratch.lock_file(scratch.shared_folder() / f"pick-{gpu.uuid}")
