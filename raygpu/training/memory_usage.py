"""Memory taken by this process and by those that it started, on its GPU and on the host."""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

GIB = 2**30


def forget_peak(device: Any) -> None:
    """Begin anew to watch a torch device's peak."""
    import torch

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):  # not everywhere; the peak since the process began is then taken
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes(device: Any) -> int:
    """Since `forget_peak`: what torch took of the GPU, or this process's resident memory."""
    import torch

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return _status_bytes("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def family() -> list[int]:
    """The pids of this process and of all that it started, and they in turn."""
    children: dict[int, list[int]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # has ended meanwhile
            # The name, in parentheses, may hold anything; the parent is the second field after it (proc_pid_stat(5)).
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(process.name))
    found = [os.getpid()]
    for pid in found:
        found += children.get(pid, [])
    return found


def host_gib() -> float | None:
    """Resident memory of this process and of those that it started, what they share with files and others apart."""
    if _status_bytes("RssAnon") is None:
        return None
    return sum(_status_bytes("RssAnon", pid) or 0 for pid in family()) / GIB


def device_gib() -> float | None:
    """The most that torch or TensorFlow have held of this process's GPU, its context apart; None without one."""
    if "torch" in sys.modules:
        import torch

        if torch.cuda.is_available() and torch.cuda.is_initialized():
            return torch.cuda.max_memory_reserved() / GIB
    if "tensorflow" in sys.modules:
        import tensorflow as tf

        devices = tf.config.list_logical_devices("GPU")
        if devices:
            return sum(tf.config.experimental.get_memory_info(device.name)["peak"] for device in devices) / GIB
    return None


def _status_bytes(field: str, pid: int | Literal["self"] = "self") -> int | None:
    """A field of /proc/PID/status in bytes; see proc_pid_status(5)."""
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith(f"{field}:"))) * 1024
    return None
