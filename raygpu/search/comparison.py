"""Is the best set of hyper-parameters better than the others? A paired t-test over the repeats, with Holm's correction.

comparison = compare({"t0000": [0.97, 0.98, 0.96], "t0001": [0.91, 0.92, 0.93]}, "t0000")
comparison.worse, comparison.alike

The repeats of all sets have the same seeds, so that they are compared pair by pair. The winner was chosen by the same
scores, so many sets that are equally good would often show a pair that differs by chance. What is corrected for is
that the truly best set is ruled out: it is compared with at most all others, and in at most 5 % of searches it is not
among the winner and the sets that are not told apart from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

LEVEL = 0.05
"""Probability below which a difference counts."""
ROUNDING = 2.0**-22
"""Difference and standard error, relative to the largest score, that rounding explains: many scores are float32, of
which two are off by half of it together."""
T_TEST = "paired t-test"
CORRECTED = "paired t-test with Nadeau and Bengio's variance"
"""Test over folds, whose trainings share most of their data (Nadeau and Bengio, Machine Learning 52, 2003)."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The winner compared with each other set."""

    winner: str
    """Id of the best set."""
    p_values: Mapping[str, float]
    """Probability, corrected, of a difference as large as that by chance, by the other set's id."""
    num_pairs: int
    """Number of trainings of each set."""
    test: str
    """Name of the test."""

    @property
    def worse(self) -> list[str]:
        """Ids of the sets that are worse than the winner."""
        return [name for name, p in self.p_values.items() if p < LEVEL]

    @property
    def alike(self) -> list[str]:
        """Ids of the sets that cannot be told apart from the winner."""
        return [name for name, p in self.p_values.items() if p >= LEVEL]

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as `summary.json` has it."""
        return {
            "winner": self.winner,
            "test": self.test,
            "correction": "Holm",
            "level": LEVEL,
            "pairs": self.num_pairs,
            "worse": self.worse,
            "alike": self.alike,
            "p_values": {name: float(f"{p:.4g}") for name, p in self.p_values.items()},
        }


def compare(scores: Mapping[str, Sequence[float]], winner: str, folds: int | None = None) -> Comparison | None:
    """Compare the winner with each other set; None with fewer than two sets or two trainings of each.

    scores: finite scores of each set, in the order of the repeats' numbers, equally many of each. folds: number of
    folds of the data that validate in turn; None without cross-validation.
    """
    num_pairs = len(scores[winner])
    if len(scores) < 2 or num_pairs < 2:
        return None
    assert all(len(values) == num_pairs for values in scores.values()), "a score of each set for each repeat"
    others = [name for name in scores if name != winner]
    raw = [paired_p(scores[winner], scores[name], folds) for name in others]
    return Comparison(winner, dict(zip(others, holm(raw), strict=True)), num_pairs, CORRECTED if folds else T_TEST)


def standard_error(values: Sequence[float], folds: int | None = None) -> float | None:
    """Return the standard error of the mean of scores or of differences; None for fewer than two.

    folds: number of folds, of which each trains on most of the data of the others: then Nadeau and Bengio's variance,
    (1 / n + 1 / (folds - 1)) times that of the values, takes the place of 1 / n times it.
    """
    if len(values) < 2:
        return None
    shared = 1 / (folds - 1) if folds is not None and folds > 1 else 0.0
    return stdev(values) * math.sqrt(1 / len(values) + shared)


def paired_p(one: Sequence[float], other: Sequence[float], folds: int | None = None) -> float:
    """Return the two-sided p-value of the scores' paired differences by Student's t with n - 1 degrees of freedom.

    Differences that are equal but for rounding have no error to compare with, as those of accuracies often have by
    chance: they count by the sign test, unless they are 0. folds: as of `standard_error`.
    """
    from scipy.stats import t

    differences = [a - b for a, b in zip(one, other, strict=True)]
    mean, error = fmean(differences), standard_error(differences, folds) or 0.0
    rounding = ROUNDING * max(map(abs, (*one, *other)))
    if error <= rounding:
        return 2 * 0.5 ** len(differences) if abs(mean) > rounding else 1.0
    return float(2 * t.sf(abs(mean) / error, len(differences) - 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number by Holm's step-down procedure (Scandinavian J. of Statistics 6, 1979).

    The smallest is multiplied by their number, the next by one less, and so on; none gets below the one before it.
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda at: p_values[at])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted
