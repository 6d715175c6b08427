"""Reports of a worker to the driver: epochs and ends of an array's members, and the error that ended it."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field

from raygpu.search.scoring import BestEpoch, TrialScores
from raygpu.search.trial_record import Change, Status
from raygpu.search.trials import EpochResult
from raygpu.training.base import NotAsAlone
from raygpu.training.out_of_memory import is_out_of_memory


@dataclass(frozen=True, slots=True)
class Beginning:
    """The epoch after which an attempt to train a member goes on."""

    epoch: int
    """Last epoch of its checkpoint; 0 at the member's own beginning."""
    scores: TrialScores
    """Scores up to it."""


@dataclass(slots=True)
class MemberReport:
    """New epochs and the end of one member, as part of an array's result."""

    trial_id: str
    epochs: list[EpochResult] = field(default_factory=list)
    status: Status | None = None
    """Final status; None while the member is under way."""
    reason: str | None = None
    best: BestEpoch | None = None
    """Best epoch of the member; None if the last epoch counts."""
    changes: list[Change] = field(default_factory=list)
    """Changes of the member's parameters and values, in a population."""
    beginning: Beginning | None = None
    """Epoch and scores from which the worker's attempt goes on; None but in its first report."""

    def end(self, reason: str | None) -> None:
        """Report the member's end. reason: why it was stopped; None if it finished."""
        self.status, self.reason = "finished" if reason is None else "stopped", reason

    @classmethod
    def of_end(cls, trial_id: str, reason: str | None) -> MemberReport:
        """Return the report of an end alone."""
        report = cls(trial_id)
        report.end(reason)
        return report


@dataclass(frozen=True, slots=True)
class Failure:
    """Error that ends an array."""

    text: str
    """Traceback."""
    out_of_memory: bool = False
    not_as_alone: str | None = None
    """Reason why the array's members differ from the same trials trained alone; None if they do not."""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe the exception that is being handled."""
        not_as_alone = str(error) if isinstance(error, NotAsAlone) else None
        return cls(traceback.format_exc(), is_out_of_memory(error), not_as_alone)

    @property
    def breaks_device(self) -> bool:
        """Whether it lost the CUDA context, after which nothing runs in this process."""
        return breaks_device(self.text)


def breaks_device(text: str) -> bool:
    """Return whether an error of this text has lost the CUDA context."""
    return "CUDA error" in text or "AcceleratorError" in text
