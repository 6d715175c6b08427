"""Several objectives of a sweep: which trials no other one beats in every metric."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def front(points: Sequence[Sequence[float]], maximize: Sequence[bool]) -> list[int]:
    """Return the places of the points of the Pareto front, the best in the first metric first.

    A point is on the front unless another one is at least as good in every metric and better in one; equal points are
    on it together. points: finite values, one for each metric. maximize: of each metric, whether more is better.
    """
    if not points:
        return []
    costs = np.array(points, dtype=float) * np.where(maximize, -1.0, 1.0)
    order = np.lexsort(costs.T[::-1])  # whatever beats a point comes before it
    places: list[int] = []
    front_costs = np.empty((0, costs.shape[1]))
    for place in order:
        candidate = costs[place]
        beaten = (front_costs <= candidate).all(axis=1) & (front_costs < candidate).any(axis=1)
        if not beaten.any():
            places.append(int(place))
            front_costs = np.vstack([front_costs, candidate])
    return places
