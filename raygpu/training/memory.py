"""What memory this process takes: of its GPU, and of the host."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

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


def host_gib() -> float | None:
    """Resident memory that this process shares with no other one."""
    own = _status_bytes("RssAnon")
    return None if own is None else own / GIB


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


def _status_bytes(field: str) -> int | None:
    """A field of /proc/self/status in bytes; see proc_pid_status(5)."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith(f"{field}:"))) * 1024
    return None
