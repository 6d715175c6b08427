"""The score of a sweep's winner, or of a production model, on the test data, which is looked at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from raygpu.search.comparison import standard_error

TEST = "test"
"""Key of the score in `summary.json` and in `run.json`, and the first part of its metrics' names."""


@dataclass(frozen=True, slots=True)
class ScoreOnTest:
    """Metrics of one model on the test data, or the means of several models of one set of hyper-parameters."""

    num_samples: int
    """Samples of the test data."""
    trial_ids: tuple[str, ...]
    """Trials whose models were scored."""
    metrics: Mapping[str, float]
    """Values by path, `test/accuracy`: means over the models."""
    standard_errors: Mapping[str, float] = field(default_factory=dict)
    """Standard error of each mean over models; of a single model, or of values that are not finite, it is not known."""
    winners: int = 1
    """Number of winners that the test data has scored in this sweep, this one included: more than one after a resume
    that found another winner, or trained it on."""
    epochs: Mapping[str, int | None] = field(default_factory=dict)
    """Epoch of each model, by trial id."""
    num_trained: int | None = None
    """Number of models of the set that were trained to a score, whose checkpoints were not all kept; None if all of
    them were scored."""

    @classmethod
    def of(
        cls,
        num_samples: int,
        by_trial: Mapping[str, Mapping[str, float]],
        winners: int = 1,
        folds: int | None = None,
        epochs: Mapping[str, int | None] | None = None,
        num_trained: int | None = None,
    ) -> ScoreOnTest:
        """Return the score of the models of one set of hyper-parameters.

        by_trial: metrics by their own names. folds: number of folds on whose other data each was trained. epochs: of
        the models. num_trained: number of models of the set that have a score; None for those of `by_trial`.
        """
        models = list(by_trial.values())
        columns = {f"{TEST}/{name}": [model[name] for model in models] for name in models[0]}
        finite = {name: values for name, values in columns.items() if all(map(math.isfinite, values))}
        standard_errors = {name: standard_error(values, folds) for name, values in finite.items()}
        errors = {name: error for name, error in standard_errors.items() if error is not None}
        means = {name: fmean(values) for name, values in columns.items()}
        trained = num_trained if num_trained != len(by_trial) else None
        return cls(num_samples, tuple(by_trial), means, errors, winners, dict(epochs or {}), trained)

    def covers(self, epochs: Mapping[str, int | None]) -> bool:
        """Return whether exactly the models of these trials, at these epochs, have been scored already."""
        return dict(epochs) == dict(self.epochs)

    def is_of(self, trained: Mapping[str, int | None]) -> bool:
        """Return whether this is the score of a set of hyper-parameters. trained: epochs of its models by trial id."""
        scored = {name: epoch for name, epoch in trained.items() if name in self.trial_ids}
        return len(trained) == (self.num_trained or len(self.trial_ids)) and self.covers(scored)

    def as_dict(self) -> dict[str, Any]:
        """Return the `test` of `summary.json`."""
        return {
            "num_samples": self.num_samples,
            "trial_ids": list(self.trial_ids),
            "metrics": dict(self.metrics),
            "standard_errors": dict(self.standard_errors),
            "winners": self.winners,
            "epochs": dict(self.epochs),
            "num_trained": self.num_trained,
        }

    @classmethod
    def read(cls, values: Mapping[str, Any] | None) -> ScoreOnTest | None:
        """Return the score that `as_dict` described; None for None, as of a run without test data."""
        if values is None:
            return None
        metrics = {name: math.nan if value is None else value for name, value in values["metrics"].items()}
        return cls(**{**values, "trial_ids": tuple(values["trial_ids"]), "metrics": metrics})

    def name(self, metric: str) -> str:
        """Return the metric's name on the test data; that of the loss for a metric that is not of an evaluation."""
        name = f"{TEST}/{metric.removeprefix('validation/')}"
        return name if name in self.metrics else f"{TEST}/loss"

    def line(self, metric: str, by: str = "the search") -> str:
        """Return the line for a person.

        metric: the one that scores trials, with or without `validation/`. by: what has never used the samples.
        """
        name, value = self.name(metric), self._value(metric)
        num = len(self.trial_ids)
        models = f"the mean of {num} models, " if num > 1 else ""
        if self.num_trained is not None:
            models = f"{self._part()}: no checkpoints of the others were kept; "
        basis = f"{models}of {self.num_samples:,} samples never used by {by}{self._earlier()}"
        return f"{name.replace('/', ' ', 1)} {value} ({basis})"

    def fact(self, metric: str) -> tuple[str, str]:
        """Return a name and a text for the head of a report. metric: as in `line`."""
        part = f" ({self._part()})" if self.num_trained is not None else ""
        return self.name(metric).replace("/", " ", 1), f"{self._value(metric)}{part}"

    def _value(self, metric: str) -> str:
        """Return the value with its standard error, as text."""
        name = self.name(metric)
        error = f" ± {self.standard_errors[name]:.2g}" if name in self.standard_errors else ""
        return f"{self.metrics[name]:.6g}{error}"

    def _part(self) -> str:
        """Return how many of the set's models were scored."""
        return f"{len(self.trial_ids)} of the set's {self.num_trained} models"

    def _earlier(self) -> str:
        """Return a clause on winners that the test data has scored before this one."""
        return f"; they have scored {self.winners - 1} earlier winner{'s' * (self.winners > 2)}" * (self.winners > 1)
