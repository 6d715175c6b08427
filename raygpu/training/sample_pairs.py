"""A score that compares each sample's output with each sample's target by broadcasting, told by a few samples. Pure.

Outputs (batch, 1) and targets (batch,) are compared so without an error, as (batch, batch) pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from itertools import combinations
from typing import TypeVar

import numpy as np

PAIRED = 4
"""Number of samples whose pairs are evaluated."""
TARGETS = 4
"""Number of targets by name up to which each of them is tried by itself too."""
EQUAL, DIFFERENT = 1e-5, 1e-4
"""Relative differences: numbers up to the first are equal, above the second they are not."""
Shape = tuple[int, ...]
Rows = tuple[int, ...]
Name = TypeVar("Name", bound=Hashable)


def broadcast_shapes(outputs: Iterable[Shape], targets: Iterable[Shape]) -> tuple[Shape, Shape] | None:
    """Return the shapes of an output and a target that broadcasting may compare each with each; None without such.

    They have as many numbers in other shapes, or one for each sample, which an index may have brought into another one.
    """
    target_shapes = list(targets)
    for output in outputs:
        for target in target_shapes:
            count = math.prod(output)
            if count == math.prod(target) and (output != target or count == output[0]):
                return output, target
    return None


def over_pairs(
    score: Callable[[Rows], Mapping[Name, float]], pair: Callable[[int, int], Mapping[Name, float]], count: int
) -> list[Name]:
    """Return the names of the scores that are those of all pairs.

    score: returns the scores of some of `count` samples, by their places. pair: those of one sample's output beside
    another one's target.
    """
    places = [rows for size in range(2, count + 1) for rows in combinations(range(count), size)]
    batches = {rows: score(rows) for rows in places}
    pairs = [[pair(row, column) for column in range(count)] for row in range(count)]
    return [
        name
        for name in batches[places[-1]]
        if _is_over_pairs(
            {rows: scores[name] for rows, scores in batches.items()},
            np.array([[scores[name] for scores in row] for row in pairs]),
        )
    ]


def _is_over_pairs(batches: Mapping[Rows, float], table: np.ndarray) -> bool:
    """Return whether a score is a mean or sum over all pairs, or the root of a mean, and not one over the samples.

    batches: the score of some of the samples, by their places. table: that of each output with each target.
    """
    full_score, diagonal = batches[tuple(range(len(table)))], np.diagonal(table)
    ways: list[Callable[[np.ndarray], float]] = [np.mean, np.sum, lambda scores: np.sqrt(np.mean(scores**2))]
    if any(np.isclose(full_score, way(diagonal), DIFFERENT) for way in ways):
        return False
    return any(
        all(np.isclose(value, way(table[np.ix_(rows, rows)]), EQUAL) for rows, value in batches.items()) for way in ways
    )
