"""The default group of torch.distributed, hidden from the experiment's code while raygpu calls it on some ranks alone.

Code that sends messages once `torch.distributed.is_initialized()`, as `compute()` of a metric of torchmetrics does,
would wait for ranks that do not evaluate, or merge the same samples once for each rank that does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist


@contextmanager
def group_hidden() -> Iterator[None]:
    """Have torch.distributed say that it is not initialized, as on one device.

    Messages that name their group go on: those of raygpu's processors, and of FSDP2 while it gathers parameters.
    """
    if not dist.is_available() or not dist.is_initialized():
        yield
        return
    group = dist.group.WORLD
    dist.group.WORLD = None
    try:
        yield
    finally:
        dist.group.WORLD = group
