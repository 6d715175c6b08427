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
    """Reset the peak of a torch device's memory."""
    import torch

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):  # not everywhere; the peak since the process began is then taken
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes(device: Any) -> int:
    """Return the peak since `forget_peak`: torch's memory on the GPU, or this process's resident memory."""
    import torch

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return _status_bytes("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def family() -> list[int]:
    """Return the pids of this process and of all its descendants."""
    children: dict[int, list[int]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # has ended meanwhile
            # The name, in parentheses, may hold anything; the parent is the second field after it (proc_pid_stat(5)).
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(process.name))
    pids = [os.getpid()]
    for pid in pids:
        pids += children.get(pid, [])
    return pids


def host_gib() -> float | None:
    """Return the resident memory of this process and its descendants, without pages shared with files and others."""
    if _status_bytes("RssAnon") is None:
        return None
    return sum(_status_bytes("RssAnon", pid) or 0 for pid in family()) / GIB


def device_gib() -> float | None:
    """Return the peak of torch's or TensorFlow's memory on this process's GPU, without its context; None without
    one."""
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
    """Return a field of /proc/PID/status in bytes; see proc_pid_status(5)."""
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith(f"{field}:"))) * 1024
    return None
