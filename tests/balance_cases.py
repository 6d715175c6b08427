"""Devices of unequal speed and memory, for a machine that has none: each process plays the one that it came as."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from experiments.digits import Mlp
from raygpu.experiment import Splits
from tests.models import few

WORKER = "default_worker.py"
"""Program of Ray's workers."""
FIXED_S = 0.004
"""Of a step, whatever its batch."""


class Unequal(Mlp):
    """Device 0 takes `samples_per_s`, device 1 six tenths of that, and device 1 has memory for `fits` samples."""

    _place: int | None = None

    def data(self) -> Splits:
        return few(1000)

    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        if Path(sys.argv[0]).name != WORKER:
            return inputs  # the first step in the driver, which is none of the devices
        if Unequal._place is None:  # of the process: each training has a copy of the experiment
            Unequal._place = place(Path(hp["folder"]))
        if self._place == 1 and len(inputs) > hp["fits"]:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate too much")
        time.sleep(FIXED_S + len(inputs) / (hp["samples_per_s"] * (0.6 if self._place else 1.0)))
        return inputs


def place(folder: Path) -> int:
    """By torch.distributed, or by whose process came first of those that are alive."""
    import torch.distributed as dist

    if dist.is_initialized():
        return dist.get_rank()
    for number in range(8):
        mark = folder / f"device-{number}"
        with contextlib.suppress(FileExistsError):
            with mark.open("x") as file:
                file.write(str(os.getpid()))
            return number
    raise RuntimeError("more processes than devices")
