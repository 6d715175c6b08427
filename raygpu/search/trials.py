"""A trial, the result of an epoch, scores and records: the values that the layers hand to each other."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from raygpu.errors import UnknownMetric

if TYPE_CHECKING:
    from raygpu.config import SweepConfig

Status = Literal["waiting", "running", "finished", "stopped", "failed", "interrupted"]
Which = Literal["last", "best"]
"""The epoch whose metric is a trial's score."""


BATCH_SIZE = 32
"""Samples of a batch where the hyper-parameters have no `batch_size`."""
_NAME = re.compile(r"t[0-9]{4,12}(-[0-9]{1,6})?")


@dataclass(frozen=True, slots=True)
class Trial:
    """One training of a set of hyper-parameters, which is scored: the only one of its set, or one of its repeats."""

    trial_id: str
    """Id: `t0000`, `t0001` ... in the order of the search; of a repeat `t0000-1`, `t0000-2` ..."""
    seed: int
    """Seed of initial parameters and the order of data; follows from the sweep's seed and the trial's place. The
    repeats of a place have the same seed in every set, so that sets can be compared pair by pair."""
    hyperparameters: Mapping[str, Any]
    repeat: int | None = None
    """Number of the repeat within its set, from 0; None if each set is trained once."""
    fold: int | None = None
    """Fold of the data that validates this training, from 0; None without cross-validation."""

    @property
    def set_id(self) -> str:
        """Id of the set of hyper-parameters: the trial's own, or what the ids of all repeats begin with."""
        return self.trial_id.partition("-")[0]

    @staticmethod
    def name(index: int) -> str:
        """Return the id of the trial at this place, `t0000`."""
        return f"t{index:04d}"

    @staticmethod
    def repeat_name(set_id: str, repeat: int) -> str:
        """Return the id of a set's repeat, from 0: `t0000-1` is the first one."""
        return f"{set_id}-{repeat + 1}"

    @staticmethod
    def require_name(value: object) -> str:
        """Return a trial's id that was read from a file or a store. Raises ValueError if it is none, as a path is."""
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            raise ValueError(f"read {value!r}; allowed: a trial's id, as t0003")
        return value


@dataclass(frozen=True, slots=True)
class EpochResult:
    """The result of a training's epoch, or of a report of a function or script."""

    epoch: int
    """Number of the epoch, from 1."""
    metrics: Mapping[str, float]
    """Values by path: `train/loss`, `validation/loss`, `validation/accuracy`; by a function's own names."""
    num_samples: int | None = None
    """Training samples of this epoch; None where raygpu does not run the loop."""
    train_s: float | None = None
    """Seconds of training in this epoch, without evaluation."""
    validate_s: float | None = None
    """Seconds of the evaluation after it; None where raygpu does not run the loop."""
    waited_s: float | None = None
    """Seconds of the training in which it waited for samples to be read; None for data in memory."""

    @property
    def samples_per_s(self) -> float | None:
        """Training throughput of the epoch; None if unknown."""
        if self.num_samples is None or not self.train_s:
            return self.metrics.get("samples_per_s")
        return self.num_samples / self.train_s


def mean_rate(epochs: Sequence[EpochResult]) -> float | None:
    """Return the training throughput over several epochs, in samples/s: the last one's own figure where raygpu does not
    run the loop, and None if unknown."""
    samples = sum(epoch.num_samples or 0 for epoch in epochs)
    seconds = sum(epoch.train_s or 0.0 for epoch in epochs)
    if samples and seconds:
        return samples / seconds
    return epochs[-1].samples_per_s if epochs else None


@dataclass(frozen=True, slots=True)
class Scoring:
    """The rule that reads a trial's score from its epochs' metrics."""

    metric: str
    maximize: bool
    which: Which = "last"
    further: tuple[tuple[str, bool], ...] = ()
    """Further metrics of a sweep with several, each with whether more is better."""

    @classmethod
    def of(cls, config: SweepConfig) -> Scoring:
        """Return the scoring of a sweep's trials."""
        return cls(config.metric, config.maximize, config.score, config.further_metrics)

    def further_values(self, metrics: Mapping[str, float]) -> tuple[float | None, ...]:
        """Return the values of the further metrics in an epoch's; None for one that is missing or not finite."""
        found = (metrics.get(name, metrics.get(f"validation/{name}")) for name, _ in self.further)
        return tuple(value if value is not None and math.isfinite(value) else None for value in found)

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
        """Return the score in an epoch's metrics. Raises UnknownMetric."""
        return metrics[self.key(metrics)]

    @property
    def worst(self) -> float:
        """Score of a trial that diverged: infinite, on the worse side."""
        return -math.inf if self.maximize else math.inf

    def value(self, metrics: Mapping[str, float]) -> float | None:
        """Return the score in an epoch's metrics: the worst one if the training diverged, None without the metric."""
        if self.diverged(metrics):
            return self.worst
        try:
            return self.score(metrics)
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

    def better(self, one: float, other: float | None) -> bool:
        """Return whether a score beats another one; any finite one beats None."""
        if not math.isfinite(one):
            return False
        return other is None or (one > other if self.maximize else one < other)


@dataclass(slots=True)
class Standing:
    """A trial's scores so far. Epochs arrive in order."""

    last: float | None = None
    """Score of the last epoch that had the metric; infinite, on the worse side, once the trial has diverged."""
    best: float | None = None
    """Best finite score."""
    best_epoch: int | None = None
    """First epoch with the best score."""
    last_epoch: int | None = None
    """Epoch of the last score."""

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
        self.last, self.last_epoch = score, result.epoch
        if not scoring.better(score, self.best):
            return False
        self.best, self.best_epoch = score, result.epoch
        return True

    @property
    def found(self) -> tuple[float, int] | None:
        """Best score and its epoch; None without a finite score."""
        return None if self.best is None or self.best_epoch is None else (self.best, self.best_epoch)

    def score(self, scoring: Scoring) -> float | None:
        """Return the trial's score by the sweep's rule; infinite, on the worse side, if it has diverged."""
        diverged = self.last is not None and not math.isfinite(self.last)
        return self.last if scoring.which == "last" or diverged else self.best


@dataclass(frozen=True, slots=True)
class Change:
    """A trial's takeover of another one's parameters."""

    epoch: int
    """Epoch after which it happened."""
    donor: str
    """Trial whose parameters and optimizer state it took over."""
    values: Mapping[str, Any]
    """Hyper-parameters that may change, with their values from the next epoch on."""


@dataclass(slots=True)
class TrialRecord:
    """The record of a trial: a row of `trials.csv` and a child run in MLflow."""

    trial: Trial
    status: Status = "waiting"
    score: float | None = None
    """Metric at the trial's last or best epoch, as the sweep is configured; infinite, on the worse side, for a trial
    that diverged; None before the first epoch."""
    epochs: int = 0
    samples_per_s: float | None = None
    """Mean training throughput over the trial's epochs."""
    gpu_index: int | None = None
    diverged: bool = False
    error: str | None = None
    """The traceback of a failed trial."""
    reason: str | None = None
    """Reason why a trial was stopped."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the last epoch."""
    samples_seen: int = 0
    train_s: float = 0.0
    rgu_hours: float | None = None
    """Hours of a Reference GPU Unit used so far; None if the GPU's worth is not known."""
    which: Which = "last"
    """The epoch whose metric is the score."""
    standing: Standing = field(default_factory=Standing)
    """Scores so far."""
    changes: list[Change] = field(default_factory=list)
    """Takeovers of other trials' parameters, in a population."""

    @property
    def values(self) -> Mapping[str, Any]:
        """Hyper-parameters with their present values: in a population they change."""
        hp = self.trial.hyperparameters
        return hp if not self.changes else {**hp, **self.changes[-1].values}

    further: tuple[float | None, ...] = ()
    """Values of the sweep's further metrics at the epoch of the score; None for one that is not finite."""

    @property
    def objectives(self) -> tuple[float, ...] | None:
        """The score and the further metrics; None unless all of them are finite."""
        values = (self.score, *self.further)
        finite = tuple(value for value in values if value is not None and math.isfinite(value))
        return finite if len(finite) == len(values) and self.status != "failed" and not self.diverged else None

    @property
    def best_epoch(self) -> int | None:
        """Epoch of the best finite score, even if the trial's score is of the last epoch."""
        return self.standing.best_epoch

    @property
    def score_epoch(self) -> int | None:
        """Epoch of the trial's score."""
        return self.best_epoch if self.which == "best" and not self.diverged else self.standing.last_epoch

    @property
    def ended(self) -> bool:
        """Whether the trial has finished, was stopped or failed."""
        return self.status in ("finished", "stopped", "failed")
