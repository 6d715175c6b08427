"""CUDA MPS in user mode: kernels of several processes on one GPU at the same time, with caps of memory and threads.

    with Mps.start(gpu.uuid) as mps:
        environment = mps.access.environment(share_fraction=0.25, memory_gib=4.0)

One daemon per GPU, in directories of our own. CUDA says nothing when a process goes without the daemon: ask `clients`.
"""

from __future__ import annotations

import atexit
import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from raygpu.devices import nvml
from raygpu.devices.mps_control import PROGRAM, Control, program, until
from raygpu.errors import RaygpuError, one_line
from raygpu.planning.gpu_shares import MAX_MPS_CLIENTS
from raygpu.planning.profiles import NOT_STARTED
from raygpu.records.scratch import lock_file, private_folder

MEMORY_LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
"""Environment variable of an MPS client with its memory limit on each of its GPUs, by index."""
VOLTA = (7, 0)
START_S = 30.0
STOP_S = 10.0
OVERLAP = 2.0
"""Number of times that a GPU's threads are given out. NVIDIA advises 2 ("100% / 0.5n"): a client may use threads that
others leave idle; 1 would keep clients apart."""
# sun_path has 108 bytes (unix(7)); MPS adds the names of its sockets.
LONGEST_PIPE = 80
LOCK = "lock"
"""File in a daemon's folder that its owner has locked."""
BUSY = "another raygpu of yours runs MPS on {}"
UNUSABLE = "{} cannot be used: {}"


class NoMps(RaygpuError):
    """MPS cannot be used; the message says why in one line."""


@dataclass(frozen=True, slots=True)
class Access:
    """Address of a running MPS daemon for its clients; picklable."""

    uuid: str
    directories: Mapping[str, str]

    def environment(self, share_fraction: float, memory_gib: float | None) -> dict[str, str]:
        """Return the environment variables that a process needs before it starts CUDA with this share of the GPU.

        share_fraction: 0 to 1. memory_gib: limit for all memory of the process on the GPU, its context included; None
        for no limit. Raises NoMps if the share is smaller than MPS allows.
        """
        if share_fraction * MAX_MPS_CLIENTS < 1:
            raise NoMps(f"{math.floor(1 / share_fraction)} trainings per GPU, but MPS serves at most {MAX_MPS_CLIENTS}")
        # The daemon shows its clients one device: by UUID it is found under any order of devices, and it is number 0.
        variables = dict(self.directories) | {
            "CUDA_VISIBLE_DEVICES": self.uuid,
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(min(100, math.ceil(100 * share_fraction * OVERLAP - 1e-9))),
        }
        if memory_gib is not None:
            variables[MEMORY_LIMIT] = f"0={math.floor(memory_gib * 1024)}M"
        return variables

    def clients(self) -> list[int]:
        """Return the pids of the processes attached to the daemon now. Call it on the daemon's own machine."""
        return Control(Path(self.directories["CUDA_MPS_PIPE_DIRECTORY"]).parent).clients()


class Mps:
    """A running MPS daemon for one GPU.

    Ends with `stop`, at the context's exit, and at the end of the process that started it.
    """

    def __init__(self, uuid: str, control: Control, lock: int) -> None:
        self.uuid = uuid
        self._control = control
        self._lock: int | None = lock
        self._starter = os.getpid()
        atexit.register(self.stop)

    @classmethod
    def start(cls, uuid: str, root: Path | None = None, within_s: float = START_S) -> Mps:
        """Start an MPS daemon and its server for one GPU. Raises NoMps.

        root: folder for its directories; default /tmp/raygpu-mps-UID, whatever TMPDIR is: paths must be short.
        within_s: seconds that the daemon and the server each have to start.
        """
        reason = unavailable(uuid, root)
        if reason is not None:
            raise NoMps(reason)
        control = _control(uuid, root)
        try:
            return cls._started(uuid, control, within_s)
        except OSError as error:  # its disk is full, say
            raise NoMps(UNUSABLE.format(control.folder, one_line(error))) from error

    @classmethod
    def _started(cls, uuid: str, control: Control, within_s: float) -> Mps:
        """Start a daemon in its folder. Raises NoMps and OSError."""
        lock = _lock(control.folder, uuid)
        try:
            _clear(control)
        except BaseException:
            os.close(lock)  # whatever is left there is not ours to end
            raise
        try:
            for path in (control.pipe, control.log):
                path.mkdir(mode=0o700, parents=True)
            reason = control.start(uuid, within_s) or _server_up(control, within_s)
            if reason is not None:
                raise NoMps(f"{NOT_STARTED}: {reason}")
            return cls(uuid, control, lock)
        except BaseException:
            _end(control, lock)
            raise

    @property
    def access(self) -> Access:
        """Return the daemon's address for its clients."""
        return Access(self.uuid, self._control.directories())

    def clients(self) -> list[int]:
        """Return the pids of the processes attached to the daemon now."""
        return self._control.clients()

    def stop(self) -> str | None:
        """End the daemon and remove its directories. End the trainings before.

        Return None, or a line about a daemon that does not end. Does nothing on a second call, or in a forked process.
        """
        if self._lock is None or os.getpid() != self._starter:
            return None  # ended already, or inherited by a fork
        lock, self._lock = self._lock, None
        atexit.unregister(self.stop)
        return _end(self._control, lock)

    def __enter__(self) -> Mps:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


def refusal(uuid: str) -> str | None:
    """Return why MPS cannot run on a GPU, without trying it; None if no reason is known."""
    if program() is None:
        return f"{PROGRAM} is not installed; it comes with the driver (nvidia-compute-utils, nvidia-utils)"
    if "microsoft" in _kernel().lower():
        return "WSL2 has no CUDA MPS"
    gpu = next((gpu for gpu in nvml.gpus() if gpu.uuid == uuid), None)
    if gpu is None:
        return f"{uuid} is no GPU of this machine"
    if gpu.mig:
        return f"{gpu.name} is cut into MIG instances; MPS is used on whole GPUs"
    if gpu.compute_mode == "prohibited":
        return f"{gpu.name} is in compute mode prohibited: no process may compute on it"
    if gpu.capability is not None and gpu.capability < VOLTA:
        return f"{gpu.name} is older than Volta: its MPS caps neither memory nor threads"
    return None


def unavailable(uuid: str, root: Path | None = None) -> str | None:
    """Return why MPS cannot be started on a GPU now, without trying it; None if no reason is known."""
    control = _control(uuid, root)
    reason = refusal(uuid) or _unusable(control)
    if reason is not None or control.daemon() is None:
        return reason
    try:
        lock = lock_file(control.folder / LOCK)
    except OSError as error:
        return UNUSABLE.format(control.folder, one_line(error))
    if lock is None:
        return BUSY.format(uuid)
    os.close(lock)  # what a raygpu left that was killed
    return _serving(control)


def _control(uuid: str, root: Path | None) -> Control:
    """Return the control of a GPU's daemon. root: as in `Mps.start`."""
    folder = root or Path(f"/tmp/raygpu-mps-{os.getuid()}")
    return Control(folder / uuid.removeprefix("GPU-").replace("-", "")[:12])


def _kernel() -> str:
    return os.uname().release


def _unusable(control: Control) -> str | None:
    """Return why a daemon's folder cannot be made; None if a file can be written beside it."""
    if len(os.fsencode(control.pipe)) > LONGEST_PIPE:
        return f"{control.pipe} is too long for a socket, which has {LONGEST_PIPE} bytes of it"
    root = control.folder.parent
    try:
        private_folder(root)
    except OSError as error:
        return f"{root} cannot be made: {error.strerror}" if error.strerror else str(error)
    try:
        with tempfile.TemporaryFile(dir=root) as file:
            file.write(bytes(4096))
    except OSError as error:
        return UNUSABLE.format(root, one_line(error))
    return None


def _serving(control: Control) -> str | None:
    """Return that the daemon of a raygpu that was killed still has clients; None if it has none."""
    clients = control.clients()
    return f"an earlier raygpu's MPS still serves processes: end {', '.join(map(str, clients))}" if clients else None


def _lock(folder: Path, uuid: str) -> int:
    """Lock the GPU's folder; the kernel releases the lock when the process ends. Raises NoMps if it is held."""
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileNotFoundError):  # its owner removes it meanwhile
            if (lock := lock_file(folder / LOCK)) is not None:
                return lock
            if (folder / LOCK).exists():
                raise NoMps(BUSY.format(uuid))


def _clear(control: Control) -> None:
    """End the daemon of a raygpu that was killed, and remove its files. Raises NoMps if it still has clients."""
    if control.daemon() is not None:
        reason = _serving(control)
        if reason is not None:
            raise NoMps(reason)
        fault = control.quit(STOP_S)
        if fault is not None:
            raise NoMps(f"{NOT_STARTED}: {fault}")
    for path in (control.pipe, control.log):
        shutil.rmtree(path, ignore_errors=True)


def _server_up(control: Control, within_s: float) -> str | None:
    """Start the server before the first client, whose training would fail with it. Return None, or why it failed."""
    if not until(lambda: control.daemon() is not None and control.servers() is not None, within_s):
        return f"the MPS daemon does not answer{control.last_words()}"
    control.ask(f"start_server -uid {os.getuid()}")
    if not until(lambda: bool(control.servers()), within_s):
        return f"the MPS daemon runs, but its server does not start{control.last_words()}"
    return None


def _end(control: Control, lock: int) -> str | None:
    """Stop the folder's daemon, remove the folder and release the lock. Return None, or why the daemon still runs."""
    try:
        return control.quit(STOP_S)
    finally:
        # The next start has to find the pid of a daemon that does not end.
        if control.daemon() is None:
            shutil.rmtree(control.folder, ignore_errors=True)
        os.close(lock)
