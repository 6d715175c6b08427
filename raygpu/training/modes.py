"""Modes of torch that hold for a whole process, which one trial's code may set and the next one's must not find."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

DEVICES = ("cpu", "cuda")


def torch_modes() -> Callable[[], None]:
    """Return a function that sets torch's modes as they are now; one that does nothing if torch is not imported yet.

    Threads and the precision of products are set for each training anyway.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return lambda: None
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    gradients = torch.is_grad_enabled()
    anomaly = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    deterministic = torch.get_deterministic_debug_mode()
    fast_attention = torch.backends.mha.get_fastpath_enabled()
    cudnn = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic
    casts = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in DEVICES]

    def restore() -> None:
        """Set the modes as they were."""
        torch.set_default_dtype(dtype)
        if torch.get_default_device() != device:
            torch.set_default_device(None if device.type == "cpu" else device)
        torch.set_grad_enabled(gradients)
        torch.autograd.set_detect_anomaly(*anomaly)
        torch.set_deterministic_debug_mode(deterministic)
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = cudnn
        torch.backends.mha.set_fastpath_enabled(fast_attention)
        for kind, enabled, cast in casts:
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, cast)

    return restore


@contextmanager
def torch_modes_kept() -> Iterator[None]:
    """Restore torch's modes at the end."""
    restore = torch_modes()
    try:
        yield
    finally:
        restore()
