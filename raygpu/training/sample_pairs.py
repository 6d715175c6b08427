"""A score that compares each sample's output with each sample's target by broadcasting, told by a few samples. Pure.

Outputs (batch, 1), or a column of several outputs, and targets (batch,) are compared so without an error, as
(batch, batch) pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import chain, combinations, product, zip_longest
from typing import TypeVar

import numpy as np

PAIRED = 4
"""Number of samples whose pairs are evaluated."""
TARGETS = 4
"""Number of targets by name up to which each of them is tried by itself too."""
EQUAL, DIFFERENT = 1e-5, 1e-4
"""Relative differences: numbers up to the first are equal, above the second they are not."""
WAYS: tuple[Callable[[np.ndarray], float], ...] = (np.mean, np.sum, lambda scores: np.sqrt(np.mean(scores**2)))
"""Ways in which the scores of samples, or of pairs, make that of a batch."""
Shape = tuple[int, ...]
Rows = tuple[int, ...]
Name = TypeVar("Name", bound=Hashable)


def varied_rows(targets: Sequence[np.ndarray]) -> list[int]:
    """Return PAIRED places of samples, ascending, or all if there are fewer: of targets that differ, as far as they do.

    Pairs of samples with one target tell nothing. targets: one array, or several that belong to the same samples.
    """
    count = len(targets[0])
    firsts = [{each[row].tobytes(): row for row in reversed(range(count))}.values() for each in targets]
    different = [row for rows in zip_longest(*map(sorted, firsts)) for row in rows if row is not None]
    spaced = np.linspace(0, count - 1, min(count, PAIRED)).astype(int)
    return sorted(int(row) for row in list(dict.fromkeys([*different, *spaced, *range(min(count, PAIRED))]))[:PAIRED])


def broadcast_shapes(outputs: Iterable[Shape], targets: Iterable[Shape]) -> tuple[Shape, Shape] | None:
    """Return the shapes of an output and a target that broadcasting may compare each with each; None without such.

    They have as many numbers in other shapes; or the target has one for each sample, as a column of the output may have
    too, or an index may have brought them into another shape.
    """
    pairs = list(product(outputs, targets))
    same_count = (pair for pair in pairs if math.prod(pair[0]) == math.prod(pair[1]) and pair[0] != pair[1])
    by_sample = (pair for pair in pairs if pair[0][:1] == pair[1][:1] == (math.prod(pair[1]),))
    return next(chain(same_count, by_sample), None)


def common_shape(output: Shape, target: Shape, name: str) -> str:
    """Return in code a shape for targets that broadcasting compares with each sample's own output.

    name: of the outputs in code.
    """
    if math.prod(output) == math.prod(target):
        return f"{name}.shape"
    return "(-1, 1)" if len(target) == 1 else "(-1,)"


def over_pairs(
    score: Callable[[Rows], Mapping[Name, float]], pair: Callable[[int, int], Mapping[Name, float]], count: int
) -> list[Name]:
    """Return the names of the scores that are means or sums over all pairs, or roots of such means, and not those over
    the samples.

    score: returns the scores of some of `count` samples, by their places. pair: those of one sample's output beside
    another one's target.
    """
    every = tuple(range(count))
    whole, own = score(every), [pair(place, place) for place in every]
    names = [
        name
        for name, value in whole.items()
        if not any(np.isclose(value, way(np.array([each[name] for each in own])), DIFFERENT) for way in WAYS)
    ]
    if not names:
        return []
    batches = {rows: score(rows) for size in range(2, count + 1) for rows in combinations(every, size)}
    pairs = [[pair(row, column) for column in every] for row in every]
    tables = {name: np.array([[scores[name] for scores in row] for row in pairs]) for name in names}
    return [
        name
        for name, table in tables.items()
        if any(
            all(np.isclose(scores[name], way(table[np.ix_(rows, rows)]), EQUAL) for rows, scores in batches.items())
            for way in WAYS
        )
    ]
