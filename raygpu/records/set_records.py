"""The records of a sweep's sets of hyper-parameters: mean score of their trainings, standard error, rank."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from raygpu.search.comparison import Comparison, compare, standard_error
from raygpu.search.repeats import Repetition, number_of
from raygpu.search.scoring import rank
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import Order, Trial


@dataclass(frozen=True)
class SetRecord:
    """A set of hyper-parameters with those of its trainings that have begun."""

    trials: Sequence[TrialRecord]
    """Trainings by number."""
    repetition: Repetition
    maximize: bool
    num_saved: int = 0
    """Number of trainings that are left out."""

    @property
    def set_id(self) -> str:
        """Id of the set, which those of its trainings begin with."""
        return self.trials[0].trial.set_id

    @property
    def hyperparameters(self) -> Mapping[str, Any]:
        """Hyper-parameters of the set."""
        return self.trials[0].trial.hyperparameters

    @cached_property
    def scored(self) -> list[TrialRecord]:
        """Trainings that count for the mean: those that have finished with a finite score; of a set without any, those
        under way, or those that were stopped."""
        finite = [r for r in self.trials if r.score is not None and math.isfinite(r.score) and r.status != "failed"]
        for ended in (("finished",), ("running", "waiting", "interrupted"), ("stopped",)):
            if trainings := [record for record in finite if record.status in ended]:
                return trainings
        return []

    @property
    def scores(self) -> list[float]:
        """Scores that the mean is of, by number."""
        return [record.score for record in self.scored if record.score is not None]

    @property
    def mean(self) -> float | None:
        """Score of the set: the mean over its trainings; None without a finite score."""
        return fmean(self.scores) if self.scored else None

    @property
    def error(self) -> float | None:
        """Standard error of the mean; None for fewer than two trainings."""
        return standard_error(self.scores, self.repetition.folds)

    @property
    def best(self) -> TrialRecord | None:
        """Training with the best score, of equal ones with the lowest validation loss; None without a finite one."""
        return min(
            self.scored,
            key=lambda record: rank(record.score or 0.0, record.validation_loss, maximize=self.maximize),
            default=None,
        )

    @cached_property
    def num_finished(self) -> int:
        """Number of trainings that have finished with a finite score."""
        return sum(record.outcome == "finished" for record in self.scored)

    @property
    def is_complete(self) -> bool:
        """Whether all trainings have finished with a finite score."""
        return self.num_finished == self.repetition.per_set

    @property
    def runs(self) -> bool:
        """Whether a training is under way."""
        return any(not record.ended for record in self.trials)

    @property
    def status(self) -> str:
        """Complete, or why the set lacks trainings: failed, diverged, stopped, interrupted, raced or runs."""
        if self.is_complete:
            return "complete"
        states = {record.outcome for record in self.trials}
        for state in ("failed", "diverged", "stopped", "interrupted"):
            if state in states:
                return state
        return "raced" if self.num_saved else "runs"

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the set, which each of its trainings' runs gets."""
        values = {"set/score": self.mean, "set/standard_error": self.error, "set/repeats": float(len(self.scored))}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def rank(self) -> tuple[int, int, float, Order]:
        """Key that sorts sets, the best first: a set that lacks trainings comes after all that have more."""
        stopped = any(record.status == "stopped" for record in self.trials)
        counted = 0 if stopped else len(self.scored)
        mean = self.mean
        worth = math.inf if mean is None else -mean if self.maximize else mean
        return -(0 if stopped else self.num_finished), -counted, worth, Trial.order(self.set_id)


def ranked_sets(
    records: Sequence[TrialRecord], repetition: Repetition, *, maximize: bool, saved: Collection[str] = ()
) -> list[SetRecord]:
    """Return the sets of these trials, the best first. saved: ids of the trials that are left out."""
    by_set: dict[str, list[TrialRecord]] = {}
    for record in records:
        by_set.setdefault(record.trial.set_id, []).append(record)
    numbers = range(repetition.per_set)
    sets = [
        SetRecord(
            sorted(trials, key=lambda record: number_of(record.trial.trial_id)),
            repetition,
            maximize,
            sum(Trial.repeat_name(name, number) in saved for number in numbers) if saved else 0,
        )
        for name, trials in by_set.items()
    ]
    return sorted(sets, key=lambda each: each.rank)


def compared(sets: Sequence[SetRecord]) -> Comparison | None:
    """Compare the best set with the other complete ones; None with fewer than two. sets: the best first."""
    complete = [each for each in sets if each.is_complete]
    if len(complete) < 2:
        return None
    return compare({each.set_id: each.scores for each in complete}, complete[0].set_id, complete[0].repetition.folds)
