"""The score of a trial: the rule that reads it from epochs' metrics, and a trial's scores so far. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from raygpu.errors import UnknownMetric
from raygpu.search.trials import EpochResult

if TYPE_CHECKING:
    from raygpu.config import SweepConfig

ScoreRule = Literal["last", "best"]
"""The epoch whose metric is a trial's score."""
LOSS = "validation/loss"
"""Metric that ranks trials whose scores are equal, as accuracies on a few hundred samples often are."""
LOSS_DIGITS = 6
"""Significant digits of the validation loss in a ranking, so that rounding errors, which differ by mode, decide
nothing."""
LARGEST = 1e300
"""Largest score by magnitude. Sums, differences and percentiles of scores up to it are finite numbers."""


def bounded(score: float) -> float:
    """Return a score, even an infinite one, bounded to a number that can be computed with."""
    return max(-LARGEST, min(LARGEST, score))


@dataclass(frozen=True, slots=True)
class Scoring:
    """The rule that reads a trial's score from its epochs' metrics."""

    metric: str
    maximize: bool
    score_rule: ScoreRule = "last"
    further: tuple[tuple[str, bool], ...] = ()
    """Further metrics of a sweep with several, each with whether more is better."""

    @classmethod
    def of(cls, config: SweepConfig) -> Scoring:
        """Return the scoring of a sweep's trials."""
        return cls(config.metric, config.maximize, config.score, config.further_metrics)

    @property
    def _names(self) -> tuple[str, ...]:
        return self.metric, *(name for name, _ in self.further)

    def further_values(self, metrics: Mapping[str, float]) -> tuple[float | None, ...]:
        """Return the values of the further metrics in an epoch's, bounded; None for one that is missing or not
        finite."""
        values = (metrics.get(name, metrics.get(f"validation/{name}")) for name, _ in self.further)
        return tuple(bounded(value) if value is not None and math.isfinite(value) else None for value in values)

    def require_further(self, metrics: Mapping[str, float]) -> None:
        """Raise UnknownMetric if an epoch's metrics lack a further one."""
        for name, maximize in self.further:
            Scoring(name, maximize).key(metrics)

    def key(self, names: Mapping[str, object]) -> str:
        """Return the reported name that `metric` stands for: itself or `validation/<metric>`. Raises UnknownMetric."""
        for name in (self.metric, f"validation/{self.metric}"):
            if name in names:
                return name
        raise UnknownMetric(
            f"metric: read {self.metric!r}; the experiment reports: {', '.join(sorted(names)) or 'none'}"
        )

    def score(self, metrics: Mapping[str, float]) -> float:
        """Return the metric in an epoch's metrics, as it was reported. Raises UnknownMetric."""
        return metrics[self.key(metrics)]

    @property
    def worst(self) -> float:
        """Score of a trial that diverged: infinite, on the worse side."""
        return -math.inf if self.maximize else math.inf

    def value(self, metrics: Mapping[str, float]) -> float | None:
        """Return the score in an epoch's metrics, bounded: the worst one, infinite, if the training diverged, None
        without the metric."""
        if self.diverged(metrics):
            return self.worst
        try:
            return bounded(self.score(metrics))
        except UnknownMetric:
            return None

    def diverged(self, metrics: Mapping[str, float]) -> bool:
        """Return whether the metric itself, or one whose name ends in `loss`, is NaN or infinite.

        Other metrics may be: an AUC before the second class was seen is no reason to end a trial.
        """
        watched = (self.metric, f"validation/{self.metric}")
        return not all(
            math.isfinite(value) for name, value in metrics.items() if name in watched or name.lower().endswith("loss")
        )

    def beyond(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return those of the scored metrics in an epoch's that are finite and too large to be scores as they are."""
        values = {name: metrics.get(name, metrics.get(f"validation/{name}", 0.0)) for name in self._names}
        return {name: value for name, value in values.items() if LARGEST < abs(value) < math.inf}

    def better(self, one: float, other: float | None) -> bool:
        """Return whether a score beats another one; any finite one beats None."""
        if not math.isfinite(one):
            return False
        return other is None or (one > other if self.maximize else one < other)


class BestEpoch(NamedTuple):
    """A trial's best epoch so far."""

    score: float
    epoch: int
    loss: float | None
    """Validation loss; None where it is not finite or not reported."""


@dataclass(slots=True)
class TrialScores:
    """A trial's scores so far. Epochs arrive in order."""

    last: float | None = None
    """Score of the last epoch that had the metric; infinite, on the worse side, once the trial has diverged."""
    best: float | None = None
    """Best finite score."""
    best_epoch: int | None = None
    """First epoch with the best score."""
    last_epoch: int | None = None
    """Epoch of the last score."""
    last_loss: float | None = None
    """Validation loss at the epoch of the last score; None where it is not finite or not reported."""
    best_loss: float | None = None
    """The same at the epoch of the best score."""

    def take(self, scoring: Scoring, result: EpochResult) -> bool:
        """Take in an epoch; return whether it is the best so far. Raises UnknownMetric for a first report without the
        metric."""
        score = scoring.value(result.metrics)
        if score is None:
            if self.last is None:
                scoring.key(result.metrics)  # raises
            return False
        if self.last is None:
            scoring.require_further(result.metrics)
        self.last, self.last_epoch, self.last_loss = score, result.epoch, validation_loss(result.metrics)
        if not scoring.better(score, self.best):
            return False
        self.best, self.best_epoch, self.best_loss = self.last, self.last_epoch, self.last_loss
        return True

    @property
    def found(self) -> BestEpoch | None:
        """The best epoch; None without a finite score."""
        if self.best is None or self.best_epoch is None:
            return None
        return BestEpoch(self.best, self.best_epoch, self.best_loss)

    def score(self, scoring: Scoring) -> float | None:
        """Return the trial's score by the sweep's rule; infinite, on the worse side, if it has diverged."""
        return self.last if self._counts_last(scoring.score_rule) else self.best

    def loss(self, score_rule: ScoreRule) -> float | None:
        """Return the validation loss at the epoch of the trial's score; None where it is not finite or not reported."""
        return self.last_loss if self._counts_last(score_rule) else self.best_loss

    def _counts_last(self, score_rule: ScoreRule) -> bool:
        """Return whether the last epoch is that of the score: by the rule, or because the trial has diverged in it."""
        return score_rule == "last" or (self.last is not None and not math.isfinite(self.last))


def rank(score: float, loss: float | None, *, maximize: bool) -> tuple[float, float]:
    """Return a trial's key, which sorts the best first: by its score and, where scores are equal, by its validation
    loss."""
    return -score if maximize else score, math.inf if loss is None else loss


def validation_loss(metrics: Mapping[str, float]) -> float | None:
    """Return the validation loss in an epoch's metrics, rounded; None where it is not finite or not reported."""
    loss = metrics.get(LOSS, math.nan)
    return float(f"{loss:.{LOSS_DIGITS}g}") if math.isfinite(loss) else None
