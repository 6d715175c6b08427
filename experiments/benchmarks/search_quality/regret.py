"""Regret of each searcher: its best model's test error above the smallest one that any search of the problem found.

For each problem, seed and moment a searcher has a test error, that of its incumbent; none before its first score. The
reference of a problem and seed is the smallest test error of any searcher's incumbent at any of the moments. A
searcher without an incumbent has the worst test error that any other one had then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

Errors = Mapping[str, Sequence[float | None]]
"""Test errors by searcher, one for each seed; None without an incumbent."""


def references(errors: Sequence[Errors]) -> list[float]:
    """Return the smallest test error of each seed. errors: of each moment."""
    seeds = len(next(iter(errors[0].values())))
    return [
        min(
            (known for at in errors for values in at.values() if (known := values[seed]) is not None),
            default=math.nan,
        )
        for seed in range(seeds)
    ]


def median_regrets(errors: Errors, best: Sequence[float]) -> dict[str, float]:
    """Return each searcher's median regret over the seeds. errors: of one moment. best: reference of each seed."""
    seeds = range(len(best))
    worst = [max((e for values in errors.values() if (e := values[s]) is not None), default=math.nan) for s in seeds]
    found = {}
    for searcher, values in errors.items():
        known = [worst[s] if (e := values[s]) is None else e for s in seeds]
        found[searcher] = median(error - best[s] for s, error in enumerate(known))
    return found


def over_best_peer(regrets: Mapping[str, float], own: str) -> float | None:
    """Return a searcher's median regret over the smallest one of the peers, which are not raygpu's; None where the
    best peer has none."""
    peers = [value for name, value in regrets.items() if not name.startswith("raygpu")]
    return regrets[own] / min(peers) if peers and min(peers) > 0 else None
