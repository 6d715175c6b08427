"""CUDA MPS in user mode: kernels of several processes on one GPU at the same time, with caps of memory and threads.

    with Mps.start(gpu.uuid) as mps:
        environment = mps.access.environment(share_fraction=0.25, memory_gib=4.0)

One daemon per GPU, in directories of our own. CUDA says nothing when a process goes without the daemon: ask `clients`.
"""

from __future__ import annotations

import atexit
import fcntl
import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from raygpu.devices import nvml
from raygpu.devices.mps_control import PROGRAM, Control, program, until
from raygpu.errors import RaygpuError
from raygpu.planning.allocation import MAX_MPS_CLIENTS

MEMORY_LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
"""Of a client: what it may take of its GPUs, by their indices."""
VOLTA = (7, 0)
START_S = 30.0
STOP_S = 10.0
OVERLAP = 2.0
# sun_path has 108 bytes (unix(7)); MPS adds the names of its sockets.
LONGEST_PIPE = 80


class NoMps(RaygpuError):
    """Why MPS is not to be had here, in one line."""


@dataclass(frozen=True, slots=True)
class Access:
    """A daemon as its clients see it; picklable."""

    uuid: str
    directories: Mapping[str, str]

    def environment(self, share_fraction: float, memory_gib: float | None, overlap: float = OVERLAP) -> dict[str, str]:
        """What a process with this share must have in its environment before it starts CUDA. Raises NoMps.

        memory_gib: of all that the process holds on the GPU, its context included; None for no limit. overlap: how
        often the GPU's threads are given out; NVIDIA advises 2 ("100% / 0.5n"), so that one client may use what others
        leave idle, and 1 keeps clients apart.
        """
        if share_fraction * MAX_MPS_CLIENTS < 1:
            raise NoMps(f"{math.floor(1 / share_fraction)} trainings per GPU, but MPS serves at most {MAX_MPS_CLIENTS}")
        # The daemon shows its clients one device: by UUID it is found under any order of devices, and it is number 0.
        variables = dict(self.directories) | {
            "CUDA_VISIBLE_DEVICES": self.uuid,
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(min(100, math.ceil(100 * share_fraction * overlap - 1e-9))),
        }
        if memory_gib is not None:
            variables[MEMORY_LIMIT] = f"0={math.floor(memory_gib * 1024)}M"
        return variables

    def clients(self) -> list[int]:
        """The pids of the processes that are attached to the daemon now. Asked on its own machine."""
        return Control(Path(self.directories["CUDA_MPS_PIPE_DIRECTORY"]).parent).clients()


class Mps:
    """A running daemon. Ended by `stop`, at the context's exit, and at the end of the process that started it."""

    def __init__(self, uuid: str, control: Control, lock: int) -> None:
        self.uuid = uuid
        self._control = control
        self._lock: int | None = lock
        self._starter = os.getpid()
        atexit.register(self.stop)

    @classmethod
    def start(cls, uuid: str, root: Path | None = None, within_s: float = START_S) -> Mps:
        """A daemon and its server for this GPU. Raises NoMps.

        root: where its directories are made; default /tmp/raygpu-mps-UID, whatever TMPDIR is: paths must be short.
        """
        reason = refusal(uuid)
        if reason is not None:
            raise NoMps(reason)
        folder = _own(root or Path(f"/tmp/raygpu-mps-{os.getuid()}")) / uuid.removeprefix("GPU-").replace("-", "")[:12]
        control = Control(folder)
        if len(os.fsencode(control.pipe)) > LONGEST_PIPE:
            raise NoMps(f"{control.pipe} is too long for a socket, which has {LONGEST_PIPE} bytes of it")
        lock = _lock(folder, uuid)
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
                raise NoMps(reason)
            return cls(uuid, control, lock)
        except BaseException:
            _end(control, lock)
            raise

    @property
    def access(self) -> Access:
        """What its clients have to know."""
        return Access(self.uuid, self._control.directories())

    def clients(self) -> list[int]:
        """The pids of the processes that are attached now."""
        return self._control.clients()

    def snapshot(self) -> str:
        """The daemon's own table of clients, for logs and messages; empty where its version has none."""
        return self._control.ask("ps") or ""

    def alive(self) -> bool:
        """Whether daemon and server still serve. A client that dies of a fault can end the server."""
        return bool(self._control.servers())

    def log(self) -> str:
        """Its last words, to be added to a message; may be empty."""
        return self._control.last_words()

    def stop(self) -> str | None:
        """End the daemon and remove its directories; None, or what is left. Trainings have to be ended before."""
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
    """Why this GPU has no MPS, as far as that shows before it is tried; None if nothing speaks against it."""
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


def _kernel() -> str:
    return os.uname().release


def _own(root: Path) -> Path:
    """A directory that nobody else writes to. Raises NoMps."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = root.lstat()
    except OSError as error:
        raise NoMps(f"{root} cannot be made: {error.strerror}") from error
    if root.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise NoMps(f"{root} is open to others; remove it")
    return root


def _lock(folder: Path, uuid: str) -> int:
    """The right to the GPU's folder, which the kernel takes back whenever its owner ends. Raises NoMps."""
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise NoMps(f"another raygpu of yours runs MPS on {uuid}") from None
        try:
            if os.stat(folder / "lock").st_ino == os.fstat(lock).st_ino:
                return lock
        except FileNotFoundError:
            pass  # its owner removed it between our opening and locking it
        os.close(lock)


def _clear(control: Control) -> None:
    """End the daemon of a raygpu that was killed, and remove what it left. Raises NoMps."""
    if control.daemon() is not None:
        clients = control.clients()
        if clients:
            pids = ", ".join(map(str, clients))
            raise NoMps(f"an earlier raygpu's MPS still serves processes: end {pids}")
        left = control.quit(STOP_S)
        if left is not None:
            raise NoMps(left)
    for path in (control.pipe, control.log):
        shutil.rmtree(path, ignore_errors=True)


def _server_up(control: Control, within_s: float) -> str | None:
    """Start the server now: with the first client its failure would be the training's. None, or why there is none."""
    if not until(lambda: control.daemon() is not None and control.servers() is not None, within_s):
        return f"the MPS daemon does not answer{control.last_words()}"
    control.ask(f"start_server -uid {os.getuid()}")
    if not until(lambda: bool(control.servers()), within_s):
        return f"the MPS daemon runs, but its server does not start{control.last_words()}"
    return None


def _end(control: Control, lock: int) -> str | None:
    """Stop what runs in the folder, remove the folder and give up the lock, whatever happens meanwhile."""
    try:
        return control.quit(STOP_S)
    finally:
        # Of a daemon that does not end the next start has to find the pid.
        if control.daemon() is None:
            shutil.rmtree(control.folder, ignore_errors=True)
        os.close(lock)
