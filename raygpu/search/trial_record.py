"""The record of a trial: its status, scores and throughput so far."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from raygpu.search.scoring import ScoreRule, TrialScores
from raygpu.search.trials import EpochResult, Trial, mean_rate

Status = Literal["waiting", "running", "finished", "stopped", "failed", "interrupted"]


@dataclass(frozen=True, slots=True)
class Change:
    """A trial's takeover of another one's parameters."""

    epoch: int
    """Epoch after which it happened."""
    donor: str
    """Trial whose parameters and optimizer state it took over."""
    values: Mapping[str, Any]
    """Hyper-parameters that were taken over, some of them changed, with their values from the next epoch on."""


def changed(begun: Mapping[str, Any], changes: Iterable[Change]) -> dict[str, Any]:
    """Return a trial's values after changes, which are in the order of their epochs. begun: its values at its start."""
    return {**begun, **{name: value for change in changes for name, value in change.values.items()}}


def cut_short(status: str, epochs: int, of_epochs: int | None) -> str | None:
    """Return at which epoch a trial was stopped or interrupted, for a person; None if it got to its last one.

    of_epochs: number of epochs of a trial; None where it is not configured.
    """
    if status not in ("stopped", "interrupted") or (of_epochs is not None and epochs >= of_epochs):
        return None
    return f"{status} at epoch {epochs}" if of_epochs is None else f"{status} at epoch {epochs} of {of_epochs}"


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
    score_rule: ScoreRule = "last"
    """The epoch whose metric is the score."""
    scores: TrialScores = field(default_factory=TrialScores)
    """Scores so far."""
    changes: list[Change] = field(default_factory=list)
    """Takeovers of other trials' parameters, in a population."""

    def add_throughput(self, epochs: Sequence[EpochResult]) -> None:
        """Take in the training throughput of the epochs of a report, at least one."""
        latest = mean_rate(epochs)
        latest = latest if latest is not None and math.isfinite(latest) else None
        self.samples_seen += sum(epoch.num_samples or 0 for epoch in epochs)
        self.train_s += sum(epoch.train_s or 0.0 for epoch in epochs)
        # A function's or script's own throughput has no samples to take a mean over.
        self.samples_per_s = self.samples_seen / self.train_s if self.train_s else latest

    def go_back(self, epoch: int, scores: TrialScores, score: float | None) -> None:
        """Drop what came after an epoch. scores: up to it. score: of the trial by them."""
        part = epoch / self.epochs
        self.samples_seen, self.train_s = round(self.samples_seen * part), self.train_s * part
        self.epochs, self.scores, self.score, self.metrics = epoch, replace(scores), score, {}
        self.diverged = score is not None and not math.isfinite(score)
        self.changes = [change for change in self.changes if change.epoch <= epoch]

    @property
    def values(self) -> Mapping[str, Any]:
        """Hyper-parameters with their present values: in a population they change."""
        return changed(self.trial.hyperparameters, self.changes)

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
        return self.scores.best_epoch

    @property
    def score_epoch(self) -> int | None:
        """Epoch of the trial's score."""
        return self.best_epoch if self.score_rule == "best" and not self.diverged else self.scores.last_epoch

    @property
    def validation_loss(self) -> float | None:
        """Validation loss at the epoch of the trial's score; None where it is not finite or not reported."""
        return self.scores.loss(self.score_rule)

    @property
    def outcome(self) -> str:
        """The status; "diverged" for a trial that has ended because its loss or metric was no longer finite."""
        return "diverged" if self.diverged and self.status == "finished" else self.status

    @property
    def is_complete(self) -> bool:
        """Whether the trial has finished or was stopped early."""
        return self.status in ("finished", "stopped")

    @property
    def ended(self) -> bool:
        """Whether the trial has finished, was stopped or failed."""
        return self.status in ("finished", "stopped", "failed")
