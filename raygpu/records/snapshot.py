"""The state of a sweep at one moment, as the live table shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from raygpu.records.set_records import SetRecord
from raygpu.search.trial_record import TrialRecord


@dataclass(frozen=True, slots=True)
class Leader:
    """One of the best trials so far, or of the best sets of hyper-parameters that have repeats."""

    record: TrialRecord
    """The trial; of a set, its best repeat."""
    curve: Sequence[float]
    """Metric by epoch, in a bounded number of points; without the epochs at which it was not finite."""
    of_set: SetRecord | None = None
    """The set; None where each is trained once."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a sweep at one moment."""

    elapsed_s: float
    num_trials: int
    running: int
    finished: int
    """Trials that finished without diverging."""
    stopped: int
    failed: int
    best: TrialRecord | None
    samples_per_s: dict[int, float | None]
    """Samples/s by GPU, summed over the trials that run there; None if no trial reports any."""
    time_left_s: float | None
    """None while it is not known."""
    diverged: int = 0
    leaders: Sequence[Leader] = ()
    """The best trials, the best first; without those that diverged."""
    held: Mapping[int, float] = field(default_factory=dict)
    """Share of each GPU that Tune trials hold, by its index."""

    @property
    def ended(self) -> int:
        """Number of trials that will not go on."""
        return self.finished + self.diverged + self.stopped + self.failed
