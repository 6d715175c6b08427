"""Run a command under faults, with an eye on all of its processes."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.soak.plans import Fault

WORKERS = ("ray::ArrayTrainable", "ray::ResourceTrainable")
"""Beginnings of the titles of a worker of trials or arrays: between two calls, and during one."""
HANG_S = 300.0
"""Seconds after which a command counts as hanging."""
OUTLIVES_S = 180.0
"""Seconds that the processes of a round have to end after it: Ray's agents wait a minute for a Ray that was killed."""
POLL_S = 0.2
DISK_MIB = 64
SIGNALS = {"kill driver": signal.SIGKILL, "interrupt driver": signal.SIGINT}


class Family:
    """The processes that a process has started, directly or not, also those whose parents have ended since."""

    def __init__(self, pid: int) -> None:
        self.members = {psutil.Process(pid)}

    def update(self) -> None:
        """Add the processes that members have started since the last call."""
        pids = {member.pid for member in self.alive()}
        new = set()
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.ppid() in pids:
                    pids.add(process.pid)
                    new.add(process)
        self.members = self.members | new

    def alive(self) -> list[psutil.Process]:
        """Return the members that have not ended."""
        return [member for member in self.members if _lives(member)]

    def workers(self) -> list[psutil.Process]:
        """Return the workers of trials and arrays, the oldest first."""
        found = []
        for member in self.alive():
            with suppress(psutil.Error):
                if " ".join(member.cmdline()).startswith(WORKERS):
                    found.append((member.create_time(), member.pid, member))
        return [member for _, _, member in sorted(found)]

    def outlive(self, deadline: float) -> list[str]:
        """Wait for the members' end; kill those that do not end, and return their command lines.

        deadline: by the monotonic clock.
        """
        self.update()
        while (left := self.alive()) and time.monotonic() < deadline:
            time.sleep(POLL_S)
            self.update()
        lines = []
        for member in left:
            with suppress(psutil.Error):
                lines.append(f"{member.pid} {' '.join(member.cmdline())[:80].strip()}")
                member.kill()
        return lines


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


@dataclass(frozen=True, slots=True)
class Target:
    """A command under way, and what its faults hit."""

    process: subprocess.Popen[bytes]
    family: Family
    database: Path
    disk: Path | None
    over: threading.Event
    """Set when the command has ended: faults that last end then."""
    applied: Counter[str]
    """Number of faults that hit, by kind."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a command."""

    exit_code: int | None
    """None for a command that was killed because it hung."""
    applied: Counter[str]
    family: Family


def run_command(
    words: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    log: Path,
    faults: Sequence[Fault],
    database: Path,
    disk: Path | None,
) -> Ended:
    """Run `python -m WORDS` in a process group of its own under faults, and wait for its end."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    target = Target(process, Family(process.pid), database, disk, threading.Event(), Counter())
    threads = [threading.Thread(target=_inject, args=(fault, target)) for fault in faults]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + HANG_S
    try:
        while process.poll() is None and time.monotonic() < deadline:
            target.family.update()
            time.sleep(POLL_S)
        return Ended(process.poll(), target.applied, target.family)
    finally:
        target.over.set()
        for thread in threads:
            thread.join()
        if process.poll() is None:
            _end(target)


def _end(target: Target) -> None:
    """End a command that hangs with all of its processes."""
    target.process.send_signal(signal.SIGABRT)  # Python's fault handler writes all threads' stacks to the log
    time.sleep(POLL_S)
    for member in target.family.alive():
        with suppress(psutil.Error):
            member.kill()
    target.process.wait()


def _inject(fault: Fault, target: Target) -> None:
    """Wait for the fault's time, and apply it if the command still runs then."""
    while fault.trains and not target.family.workers():
        if target.over.wait(POLL_S):
            return
    if target.over.wait(fault.after_s):
        return
    match fault.kind:
        case "kill worker" | "stop worker":
            _hit_worker(fault, target)
        case "kill driver" | "interrupt driver":
            target.applied[fault.kind] += 1
            target.process.send_signal(SIGNALS[fault.kind])
        case "terminate group":
            target.applied[fault.kind] += 1
            with suppress(ProcessLookupError):
                os.killpg(target.process.pid, signal.SIGTERM)
        case "lock":
            _lock(fault, target)
        case "fill":
            _fill(fault, target)


def _hit_worker(fault: Fault, target: Target) -> None:
    """Kill a worker, or stop it for a while, once there is one."""
    while not (workers := target.family.workers()):
        if target.over.wait(POLL_S):
            return
    worker = workers[int(fault.pick * len(workers))]
    with suppress(psutil.NoSuchProcess):
        if fault.kind == "kill worker":
            worker.kill()
        else:
            worker.suspend()
        target.applied[fault.kind] += 1
        if fault.kind == "stop worker":
            target.over.wait(fault.lasts_s)
            worker.resume()


def _lock(fault: Fault, target: Target) -> None:
    """Hold the store for a while, so that it takes no writes."""
    with closing(sqlite3.connect(target.database, timeout=30, isolation_level=None)) as store:
        store.execute("BEGIN EXCLUSIVE")
        target.applied[fault.kind] += 1
        target.over.wait(fault.lasts_s)
        store.execute("ROLLBACK")


def _fill(fault: Fault, target: Target) -> None:
    """Fill the sweep's disk for a while."""
    assert target.disk is not None
    filler = target.disk / "filler"
    target.applied[fault.kind] += 1
    try:
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(2**16))
        target.over.wait(fault.lasts_s)
    finally:
        filler.unlink(missing_ok=True)


def mounted(folder: Path) -> bool:
    """Mount a small disk in memory at a folder, which is made; return whether that is possible here."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(folder)]
    return os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0


def unmount(folder: Path) -> None:
    """Unmount a disk that `mounted` has mounted."""
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
