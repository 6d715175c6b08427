"""Generations of a search that learns: it draws so many sets of hyper-parameters, and then waits for all their results.

    generations = Generations.of(config, in_arrays=True)
    generations.end(128)       # 144: the generation that begins after 128 sets has 16
    generations.number(128)    # 14

No array is wider than a generation. Of trials that train alone, `tpe` and `gp` draw each by all results so far, once a
place is free for it (experiments/benchmarks/search_places.py). Optuna's TPE learns about as well from an eighth of the
sets so far at once as from eight at a time (experiments/benchmarks/generation_width.py), so that its generations grow.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from raygpu.config import SweepConfig

SEQUENTIAL = ("tpe", "gp")
"""Samplers that learn from each result; the others compare whole generations."""
FIRST = 8
"""Number of sets of a generation, if it is not given."""
PART = 8
"""Number of sets before a generation that grows, for each of its own."""
LARGEST = 64
"""Largest number of sets of a generation that grows."""


@dataclass(frozen=True, slots=True)
class Generations:
    """Generations of a search, in sets of hyper-parameters."""

    num_sets: int
    """Number of sets of the search."""
    first: int
    """Number of sets of the first generation, if there are as many."""
    starts: tuple[int, ...]
    """Number of sets before each generation, the first one's 0."""

    @classmethod
    def of(cls, config: SweepConfig, *, in_arrays: bool) -> Generations | None:
        """Return the generations of a sweep; None if its search draws all sets before the first result, or each by all
        results so far.

        in_arrays: whether similar trials train together. Racing compares the sets of a generation, in every mode.
        """
        search, num_sets = config.search, config.num_sets
        if not search.learns or num_sets is None:
            return None
        if search.generation is None and search.algorithm in SEQUENTIAL and not in_arrays and not config.racing:
            return None
        if search.generation is None and search.algorithm == "tpe":
            return cls.growing(num_sets)
        return cls.equal(num_sets, search.generation or FIRST)

    @classmethod
    def equal(cls, num_sets: int, size: int) -> Generations:
        """Return generations of one size."""
        return cls(num_sets, size, tuple(range(0, num_sets, size)))

    @classmethod
    def growing(cls, num_sets: int) -> Generations:
        """Return generations that are each an eighth of the sets before, from FIRST to LARGEST."""
        starts = [0]
        while (after := starts[-1] + max(FIRST, min(LARGEST, starts[-1] // PART))) < num_sets:
            starts.append(after)
        return cls(num_sets, FIRST, tuple(starts))

    def number(self, before: int) -> int:
        """Return the number of the generation of the set that has this many before it."""
        return bisect_right(self.starts, before) - 1

    def end(self, before: int) -> int:
        """Return the number of sets before the next generation; all sets of the last one's."""
        number = self.number(before) + 1
        return self.starts[number] if number < len(self.starts) else self.num_sets

    @property
    def mean(self) -> int:
        """Mean number of sets of a generation; not below `first`, since the last one alone may be cut short."""
        return max(self.first, round(self.num_sets / len(self.starts)))

    @property
    def largest(self) -> int:
        """Number of sets of the largest generation."""
        return max(self.end(start) - start for start in self.starts)

    def __str__(self) -> str:
        """Return the sizes as text, `8` or `8 to 32`."""
        first = self.end(0)
        return f"{first}" if self.largest == first else f"{first} to {self.largest}"
