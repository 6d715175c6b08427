"""The schedule of a sweep as its plan knows it before a trial runs: the ground of the time left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from raygpu.planning.size_model import ModelSize
from raygpu.search.generations import Generations

TRIAL_S = 0.25
"""Seconds between two trials of a reused worker until they are measured: a result, a checkpoint and the next trial's
start."""
ARRAY_S = 1.0
"""Seconds to make an array and measure its widths, until they are measured."""
WORKER_S = 4.0
"""Seconds to start a worker, until they are measured."""
FIXED = 8.0
"""Fixed time of an array's epoch, in members' own times, where no profile has it."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The order in which a sweep's trials run, and on how many slots."""

    epochs: int | None
    """Last epoch of a trial; None if only the experiment knows it."""
    slots: int = 1
    """Number of Tune trials that run at once."""
    stops: Mapping[int, float] = field(default_factory=dict)
    """Share of the trials that the stopping rule is expected to end, by epoch."""
    generations: Generations | None = None
    """Generations of a search that learns; None if it gives out all sets at once, or each once a slot is free."""
    per_set: int = 1
    """Number of trials of each set of hyper-parameters."""
    surviving: float = 1.0
    """Share of the sets whose first trial is expected not to be stopped, and that get their other trials."""
    arrays: Sequence[tuple[str, ...]] = ()
    """Trials of each planned array, in the order in which arrays begin; empty in process mode, or where trials are
    drawn later."""
    kinds: Mapping[str, int] = field(default_factory=dict)
    """Number of the trial's signature, by trial id: trials of one signature are about equally fast."""
    sizes: Mapping[int, ModelSize] = field(default_factory=dict)
    """Size by number of the signature, as far as known."""
    between_s: float = TRIAL_S
    """Seconds between two Tune trials of a slot, until they are seen."""
    fixed: float = FIXED
    """Fixed time of an array's epoch, in members' own times."""
    slowdown: Callable[[int], float] = lambda active: 1.0
    """Time of a trial with this number of trials at once, relative to that in full slots."""
