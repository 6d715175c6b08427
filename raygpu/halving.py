"""Successive halving: at which epochs trials are compared."""

from __future__ import annotations


def rungs(grace_epochs: int, reduction: float, max_epochs: int) -> list[int]:
    """The epochs below `max_epochs` at which losers are dropped: grace x reduction^k, rounded down.

    ASHA, Li et al., MLSys 2020, with no further brackets (s = 0).
    """
    found: list[int] = []
    rung = float(grace_epochs)
    while rung < max_epochs:
        found.append(int(rung))
        rung *= reduction
    return sorted(set(found))
