"""Throughput, time and memory as functions of the number of trainings at once, fitted to measurements."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

NOTHING = 1e-9
"""Effects below this share of the single-training time, at the most trainings measured, are treated as zero."""
SMALLEST = 0.1
"""Smallest fitted time of a single training, relative to the first point's; less is noise."""


@dataclass(frozen=True, slots=True)
class Affine:
    """y(n) = fixed + each * n: the seconds of an array's step and its memory, as functions of the width n."""

    fixed: float
    each: float

    def at(self, n: float) -> float:
        """Return y(n)."""
        return self.fixed + self.each * n

    @classmethod
    def fit(cls, measured: Mapping[int, float]) -> Affine:
        """Fit by least squares of the relative error, neither coefficient below 0.

        measured: y > 0 by n; a single point is taken as proportional.
        """
        n, y = _columns(measured)
        if len(n) == 1:
            return cls(0.0, float(y[0] / n[0]))
        terms, ones = np.column_stack([1 / y, n / y]), np.ones(len(n))
        fixed, each = np.linalg.lstsq(terms, ones, rcond=None)[0]
        if fixed < 0:  # then the best fit has 0 in its place
            fixed, each = 0.0, np.linalg.lstsq(terms[:, 1:], ones, rcond=None)[0][0]
        elif each < 0:
            fixed, each = np.linalg.lstsq(terms[:, :1], ones, rcond=None)[0][0], 0.0
        return cls(float(fixed), float(each))


@dataclass(frozen=True, slots=True)
class Usl:
    """The Universal Scalability Law, a model of the throughput of n processes side by side:

        X(n) = rate * n / (1 + contention * (n - 1) + coherency * n * (n - 1))

    N. J. Gunther, Guerrilla Capacity Planning (2007), chapters 4 to 6, where the coefficients are called gamma, sigma
    and kappa.
    """

    rate: float
    """Throughput of one process alone."""
    contention: float
    """Share of the work that is serial: one process at a time."""
    coherency: float
    """Cost per pair of processes: with it, throughput has a peak and falls after it."""

    def at(self, n: float) -> float:
        """Return the throughput X(n)."""
        return self.rate * n / (1 + self.contention * (n - 1) + self.coherency * n * (n - 1))

    @property
    def peak(self) -> float:
        """Number of processes with the highest throughput; infinite if it rises for ever."""
        if self.coherency == 0:
            return math.inf
        return math.sqrt(max(0.0, 1 - self.contention) / self.coherency)

    @classmethod
    def fit(cls, measured: Mapping[int, float]) -> Usl:
        """Fit by least squares of the relative error of n / X(n), no coefficient below 0. measured: X > 0 by n.

        Two points cannot tell contention from coherency, and are taken for contention; one is taken as linear.
        """
        from scipy.optimize import nnls  # half a second, which a worker that fits `Affine` alone has no use for

        n, x = _columns(measured)
        # n / X is linear in 1 / rate, contention / rate and coherency / rate.
        terms = np.column_stack([np.ones(len(n)), n - 1, n * (n - 1)])[:, : len(n)] * (x / n)[:, None]
        solution = np.zeros(3)
        solution[: terms.shape[1]] = nnls(terms, np.ones(len(n)))[0]
        if solution[0] < SMALLEST * n[0] / x[0]:  # of noise that falls steeply: one alone is then as the first point
            solution[0] = n[0] / x[0]
            solution[1 : terms.shape[1]] = nnls(terms[:, 1:], 1 - terms[:, 0] * solution[0])[0]
        if solution[2] * n[-1] ** 2 < NOTHING * solution[0]:  # what is left of rounding
            solution[2] = 0.0
        return cls(float(1 / solution[0]), float(solution[1] / solution[0]), float(solution[2] / solution[0]))


def _columns(measured: Mapping[int, float]) -> tuple[np.ndarray, np.ndarray]:
    points = sorted(measured.items())
    return np.array([n for n, _ in points], float), np.array([y for _, y in points], float)
