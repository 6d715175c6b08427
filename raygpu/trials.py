"""A trial, and what one epoch of it yields: the values that the layers hand to each other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from raygpu.errors import UnknownMetric

Status = Literal["waiting", "running", "finished", "stopped", "failed", "interrupted"]


@dataclass(frozen=True, slots=True)
class Trial:
    """One set of hyper-parameters to be trained and scored."""

    trial_id: str
    """`t0000`, `t0001` ... in the order of the search."""
    seed: int
    """Decides initial parameters and the order of data; follows from the sweep's seed and the trial's place."""
    hyperparameters: Mapping[str, Any]

    @staticmethod
    def name(index: int) -> str:
        return f"t{index:04d}"


@dataclass(frozen=True, slots=True)
class EpochResult:
    """What a training yields after each epoch, or a function or script at each report."""

    epoch: int
    """Counted from 1."""
    metrics: Mapping[str, float]
    """By path: `train/loss`, `validation/loss`, `validation/accuracy`; of a function, as it reported them."""
    num_samples: int | None = None
    """Training samples of this epoch; None where raygpu does not run the loop."""
    train_s: float | None = None
    """Seconds of training in this epoch, without evaluation."""

    @property
    def samples_per_s(self) -> float | None:
        """Training throughput of this epoch."""
        if self.num_samples is None or not self.train_s:
            return self.metrics.get("samples_per_s")
        return self.num_samples / self.train_s


@dataclass(frozen=True, slots=True)
class Scoring:
    """How a trial's score is read from an epoch's metrics."""

    metric: str
    maximize: bool

    def key(self, names: Mapping[str, object]) -> str:
        """The reported name that `metric` stands for: itself or `validation/<metric>`. Raises UnknownMetric."""
        for name in (self.metric, f"validation/{self.metric}"):
            if name in names:
                return name
        raise UnknownMetric(
            f"metric: read {self.metric!r}; the experiment reports: {', '.join(sorted(names)) or 'none'}"
        )

    def score(self, metrics: Mapping[str, float]) -> float:
        """The score, larger or smaller is better as `maximize` says. Raises UnknownMetric."""
        return metrics[self.key(metrics)]

    @property
    def worst(self) -> float:
        """The score of a trial that diverged."""
        return -math.inf if self.maximize else math.inf

    def value(self, metrics: Mapping[str, float]) -> float | None:
        """The score, the worst one where the training diverged; None of a report without the metric."""
        if self.diverged(metrics):
            return self.worst
        try:
            return self.score(metrics)
        except UnknownMetric:
            return None

    def diverged(self, metrics: Mapping[str, float]) -> bool:
        """Whether the metric itself, or one whose name ends in `loss`, is NaN or infinite.

        Others may be: an AUC before the second class was seen is no reason to end a trial.
        """
        watched = (self.metric, f"validation/{self.metric}")
        return not all(
            math.isfinite(value) for name, value in metrics.items() if name in watched or name.lower().endswith("loss")
        )


@dataclass(slots=True)
class TrialRecord:
    """What is known of a trial: a row of `trials.csv` and a child run in MLflow."""

    trial: Trial
    status: Status = "waiting"
    score: float | None = None
    """The metric at the last epoch; infinite, on the worse side, of a diverged trial; None before the first epoch."""
    epochs: int = 0
    samples_per_s: float | None = None
    """Mean training throughput over the trial's epochs."""
    gpu_index: int | None = None
    diverged: bool = False
    error: str | None = None
    """The traceback of a failed trial."""
    reason: str | None = None
    """Why a stopped trial was stopped."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The last epoch's."""
    samples_seen: int = 0
    train_s: float = 0.0
    rgu_hours: float | None = None
    """What it has used, in hours of a Reference GPU Unit; None where its GPU's worth is not known."""

    @property
    def ended(self) -> bool:
        return self.status in ("finished", "stopped", "failed")
