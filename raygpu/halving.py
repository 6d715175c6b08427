"""Successive halving: at which epochs trials are compared."""

from __future__ import annotations

import math


def rungs(grace_epochs: int, reduction: float, max_epochs: int) -> list[int]:
    """The epochs below `max_epochs` at which losers are dropped: the first that reach grace x reduction^k.

    ASHA, Li et al., MLSys 2020, with no further brackets (s = 0).
    """
    found: list[int] = []
    rung = float(grace_epochs)
    while math.ceil(rung - 1e-9) < max_epochs:
        found.append(math.ceil(rung - 1e-9))
        rung *= reduction
    return sorted(set(found))
