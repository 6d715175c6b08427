"""Made-up records of sets of hyper-parameters with repeats."""

from __future__ import annotations

import math
from collections.abc import Sequence

from raygpu.records.set_records import SetRecord, ranked_sets
from raygpu.search.repeats import Repetition
from raygpu.search.scoring import TrialScores
from raygpu.search.trial_record import Status, TrialRecord
from raygpu.search.trials import Trial


def repeat(
    place: int, number: int, score: float | None, status: Status = "finished", fold: int | None = None
) -> TrialRecord:
    """Return the record of a set's training; an infinite score is one that diverged."""
    trial = Trial(Trial.repeat_name(Trial.name(place), number), number, {"lr": 0.1 * (place + 1)}, number, fold)
    diverged = score is not None and not math.isfinite(score)
    return TrialRecord(trial, status, score, 3, diverged=diverged, scores=TrialScores(score, score, 3, 3))


def records(*scores: Sequence[float | None]) -> list[TrialRecord]:
    """Return the records of sets with these scores; None for a training that failed."""
    return [
        repeat(place, number, score, "failed" if score is None else "finished")
        for place, values in enumerate(scores)
        for number, score in enumerate(values)
    ]


def sets_of(*scores: Sequence[float | None], repeats: int = 3) -> list[SetRecord]:
    """Return the sets with these scores, the best first."""
    return ranked_sets(records(*scores), Repetition(repeats), maximize=True)
