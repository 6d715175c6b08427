"""Checks of `raygpu doctor` that concern this machine: folders, memory, limits, the compiler, open ports."""

from __future__ import annotations

import ipaddress
import os
import resource
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from raygpu.devices import disk
from raygpu.devices.nvml import GIB
from raygpu.engines.cluster.ray_files import where
from raygpu.errors import one_line
from raygpu.records import scratch
from raygpu.workflow.diagnosis import Check

LEAST_SHM_GIB = 1.0
"""Free shared memory for Ray's object store; a container has 64 MiB unless told otherwise."""
LEAST_FILES = 4096
"""Open files that Ray wants: it warns below."""
RAY_REFUSES = 0.95
"""Part of a disk from which Ray writes no more objects to it (`local_fs_capacity_threshold`)."""
PROGRAM = "#include <Python.h>\n#include <vector>\n#include <omp.h>\nint main() { return 0; }\n"
SERVERS = ("raylet", "gcs_server", "ray::", "dashboard", "mlflow")
"""Words in the command lines of processes that answer on ports."""


def machine_checks(folder: Path) -> Iterator[Check]:
    """Yield the checks of this machine. folder: where runs are written."""
    yield writable("HOME", Path.home())
    yield temporary()
    yield token(Path.home() / ".ray" / "auth_token")
    yield shared_memory(Path("/dev/shm"))
    yield open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))
    for name, path in {"disk of runs": folder, "disk of Ray": Path(where())}.items():
        yield disk_space(name, path)
    yield compiler()
    yield ports()


def writable(name: str, path: Path) -> Check:
    """Return the check of a folder that has to be writable."""
    try:
        with tempfile.NamedTemporaryFile(dir=path):
            return Check(name, "ok", f"{path} can be written")
    except OSError as error:
        finding = f"{path} cannot be written: {one_line(error)}"
        return Check(name, "failure", finding, f"set {name} to a folder of yours")


def temporary() -> Check:
    """Return the check of the folder for temporary files: writable, and this user's part closed to others."""
    try:
        folder = scratch.shared_folder()
    except OSError as error:
        return Check("TMPDIR", "failure", one_line(error), "remove that folder, or set TMPDIR to a folder of yours")
    return writable("TMPDIR", folder)


def token(path: Path) -> Check:
    """Return the check of the token that a local Ray asks for."""
    if os.environ.get("RAY_AUTH_MODE", "token") != "token":
        finding = f"RAY_AUTH_MODE={os.environ['RAY_AUTH_MODE']}: whoever reaches Ray's ports may run code"
        return Check("token", "warning", finding, "unset RAY_AUTH_MODE")
    try:
        mode = path.stat().st_mode & 0o777
    except OSError:
        return Check("token", "ok", "Ray's token is made at its first start")
    if mode & 0o077:
        return Check("token", "failure", f"{path} can be read by others (mode {mode:o})", f"chmod 600 {path}")
    return Check("token", "ok", f"{path}, for you alone")


def shared_memory(path: Path) -> Check:
    """Return the check of shared memory, where Ray's object store lies."""
    try:
        free_gib = shutil.disk_usage(path).free / GIB
    except OSError as error:
        finding = f"{path}: {one_line(error)}; Ray's object store lies on the disk, which is slow"
        return Check("shared memory", "warning", finding, "mount it: mount -t tmpfs tmpfs /dev/shm")
    if free_gib < LEAST_SHM_GIB:
        finding = f"{path} has {free_gib:.2f} GiB free; Ray's object store lies on the disk, which is slow"
        return Check("shared memory", "warning", finding, "start the container with --shm-size=4g")
    return Check("shared memory", "ok", f"{path} has {free_gib:.1f} GiB free")


def open_files(soft: int, hard: int) -> Check:
    """Return the check of the limit of open files. soft, hard: as of getrlimit(2), RLIMIT_NOFILE."""
    if soft != resource.RLIM_INFINITY and soft < LEAST_FILES:
        more = hard if hard != resource.RLIM_INFINITY else 65536
        mend = f"ulimit -n {min(more, 65536)}" if more > soft else "raise the hard limit (limits.conf(5))"
        return Check("open files", "warning", f"at most {soft} at once; many trials need {LEAST_FILES}", mend)
    return Check("open files", "ok", f"at most {'unlimited' if soft == resource.RLIM_INFINITY else soft} at once")


def disk_space(name: str, path: Path) -> Check:
    """Return the check of the disk of a folder, or of its nearest parent that is there."""
    there = next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
    usage = shutil.disk_usage(there)
    finding = f"{path} has {usage.free / GIB:.1f} GiB free, {1 - usage.free / usage.total:.0%} in use"
    if disk.full([there]) is not None:
        return Check(name, "failure", finding, "free some space; runs would wait for it")
    if usage.free < (1 - RAY_REFUSES) * usage.total:
        return Check(name, "warning", finding, "from 95 % on Ray writes no objects to it; free some space")
    return Check(name, "ok", finding)


def compiler() -> Check:
    """Return the check of a C++ compiler with Python's and OpenMP's headers, by which arrays are compiled."""
    command = os.environ.get("CXX")
    path = shutil.which(command) if command else next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)
    mend = "apt install g++ python3-dev, or another compiler by CXX; without one, fused trials train uncompiled"
    if path is None:
        return Check("C++ compiler", "warning", f"{command or 'g++, clang++ or c++'} is not on PATH", mend)
    words = [path, "-x", "c++", "-fsyntax-only", "-fopenmp", f"-I{sysconfig.get_path('include')}", "-"]
    try:
        done = subprocess.run(words, input=PROGRAM, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("C++ compiler", "warning", f"{path}: {one_line(error)}", mend)
    if done.returncode != 0:
        faults = [line for line in done.stderr.splitlines() if "error" in line] or ["fails"]
        return Check("C++ compiler", "warning", f"{path}: {faults[0].strip()}", mend)
    return Check("C++ compiler", "ok", path)


def ports() -> Check:
    """Return the check of ports on which Ray or MLflow answer to other machines."""
    open_to_all = set()
    for connection in psutil.net_connections(kind="tcp"):
        if connection.status != psutil.CONN_LISTEN or connection.pid is None:
            continue
        if ipaddress.ip_address(connection.laddr.ip).is_loopback or (server := _server(connection.pid)) is None:
            continue
        open_to_all.add(f"{server} on {connection.laddr.ip}:{connection.laddr.port} (pid {connection.pid})")
    if open_to_all:
        mend = "who reaches them may read and run; bind them to 127.0.0.1, or keep others out by a firewall"
        return Check("ports", "warning", f"open beyond loopback: {', '.join(sorted(open_to_all))}", mend)
    return Check("ports", "ok", "neither Ray nor MLflow answers beyond loopback")


def _server(pid: int) -> str | None:
    try:
        process = psutil.Process(pid)
        line = " ".join(process.cmdline())
    except psutil.Error:
        return None
    return process.name() if any(word in line for word in SERVERS) else None
