"""A function that wants more memory than others. Its workers start quickly: nothing here imports torch."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import raygpu

GIB = 2**30


def greedy(config: dict[str, Any]) -> None:
    """Holds `gib` of memory from its second epoch on, and tells where it went on from."""
    done = raygpu.load(0)
    held = np.zeros(1)
    for epoch in range(done + 1, 4):
        if epoch == 1:
            time.sleep(1.2)  # a worker reports about once a second, and then keeps a checkpoint
        if epoch == 2:
            held = np.ones(max(1, int(config["gib"] * GIB / 8)))
        raygpu.checkpoint(epoch)
        raygpu.report(score=epoch, held_gib=held.nbytes / GIB, went_on_from=done)
