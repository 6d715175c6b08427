"""The training that a benchmark measures, and how its windows are repeated."""

from __future__ import annotations

from dataclasses import dataclass

from raygpu.config.sections import Precision
from raygpu.config.source import Source
from raygpu.experiment import Splits
from raygpu.search.trials import Trial


@dataclass(frozen=True, slots=True)
class Workload:
    """One trial of an experiment, to be trained by as many processes as a benchmark needs."""

    source: Source
    splits: Splits | None
    """Data of a torch or Keras experiment; None of functions and scripts, which load their own."""
    trial: Trial
    precision: Precision


@dataclass(frozen=True, slots=True)
class Repetitions:
    """Repetitions of a measurement."""

    window_s: float
    """Seconds of a window."""
    rounds: int
    """Windows of each point."""
    patience: int = 3
    """Largest number of rounds where they differ much, as a multiple of `rounds`."""
    again: int = 2
    """Number of times that a point is measured again that contradicts others."""
