"""The schema of a sweep's configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import zip_longest
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from raygpu.config.population_section import PopulationSection, require_fitting
from raygpu.config.problem_schema import ScoredConfig, TrialsConfig, maximizes
from raygpu.config.sections import (
    Direction,
    SearchSection,
    StartTables,
    StoppingSection,
    SweepClusterSection,
)
from raygpu.config.several_metrics import require_metrics, with_first_metric

DRAWN_PER_S, MOST_DRAWN = 100, 100_000
"""Trials that a search without a number of them draws for each second of its budget, and at most: few can train as many
a second, and each costs the driver a third of a millisecond before the first one starts."""
RACED_FROM = 5
"""Fewest repeats by which racing can rule out a set: of n pairs, its test reaches 0.5 ** n at best."""


class SweepConfig(TrialsConfig, ScoredConfig):
    """A search over hyper-parameters, packed on fractions of a GPU."""

    COMMAND: ClassVar[str] = "sweep"
    REFUSED: ClassVar[Mapping[str, str]] = {"hyperparameters": "is for a training; write constants in [space]"}

    trials: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Number of trials. Without it a grid runs whole, and with time_budget_s a search goes on until that is used up, or
    for 100 trials a second of it."""
    repeats: Annotated[int, Field(ge=1, le=100)] = 1
    """Number of trainings of each set of hyper-parameters, with other seeds; the set's score is their mean. `trials`
    counts sets."""
    racing: bool = False
    """Give no more repeats to a set that is clearly worse than the leading one, by a signed-rank test. It needs more
    than 5 repeats."""
    metrics: tuple[str, ...] = ()
    """Several metrics, instead of metric: the first one scores a trial; of all of them the Pareto front is shown."""
    directions: tuple[Direction, ...] = ()
    """max or min for each of metrics. Default: what their names say."""
    score: Literal["last", "best"] = "last"
    """Epoch whose metric is a trial's score: the last, or the best, whose checkpoint is then the trial's.
    Stopping rules compare the trials' current epochs in either case."""
    folds: Annotated[int, Field(ge=2)] | None = None
    """Cross-validation: cut training and validation data into this many folds, stratified by class. Each set of
    hyper-parameters is trained once for each fold, on all but this fold, and validated on it. Default: no folds."""
    keep: Literal["best", "all"] = "best"
    """Checkpoints that stay in the run's folder: the best trial's, or every trial's."""
    checkpoint_s: Annotated[float, Field(gt=0)] = 60.0
    """Seconds between a running trial's checkpoints, from which a lost or interrupted trial goes on."""
    fail_fast: bool = True
    """Stop once the first trials, at least 3 and as many as run at once, have all failed with one kind of error."""
    trial_timeout_s: Annotated[float, Field(gt=0)] | None = None
    """Seconds that a trial, or the array that it is fused into, may take; then it fails. `--resume` counts
    anew. Default: no limit."""
    silence_timeout_s: Annotated[float, Field(gt=0)] | None = None
    """Seconds without an epoch or report after which a trial hangs, and fails; an array is divided until the trial is
    found. It has to be longer than the first epoch with all that comes before it. Default: no limit."""
    time_budget_s: Annotated[float, Field(gt=0)] | None = None
    """Seconds after which the sweep ends, from the start of the command: running trials are paused with a checkpoint,
    and the best trial so far is the winner. `--resume` goes on for as long again; all starts of a Slurm job share it.
    Default: no limit."""
    start: StartTables = ()
    """Sets of hyper-parameters that are tried first, complete or not; trials counts them."""
    start_from: str | None = None
    """Folder of another sweep whose best sets of hyper-parameters, as far as they fit [space], are tried first."""
    start_best: Annotated[int, Field(ge=1)] = 5
    """start_from: number of its best sets."""
    search: SearchSection = SearchSection()
    stopping: StoppingSection = StoppingSection()
    population: PopulationSection = PopulationSection()
    cluster: SweepClusterSection = SweepClusterSection()

    @model_validator(mode="before")
    @classmethod
    def _first_metric(cls, values: Any) -> Any:
        return with_first_metric(values) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _consistent(self) -> SweepConfig:
        ends = self.search.algorithm == "grid" or (self.time_budget_s is not None and self.population.interval is None)
        if self.trials is None and not ends:
            raise ValueError(
                "trials: not given; a grid has as many as it has, and a search without a population may have a"
                " time_budget_s in their place"
            )
        rule = self.stopping.algorithm
        if self.epochs is None and rule in ("halving", "hyperband"):
            raise ValueError(f"epochs: not given; stopping by {rule} needs the largest number of epochs")
        if self.racing and self.per_set <= RACED_FROM:
            raise ValueError(
                f"racing: read true; it decides once sets have {RACED_FROM} repeats, so there have to be more"
            )
        if self.per_set > 1 and self.stopping.patience is not None:
            raise ValueError("stopping.patience: would stop each repeat at its own epoch; leave out it, or repeats")
        if self.per_set > 1 and self.metrics:
            raise ValueError("metrics: several have no mean over repeats and folds yet; leave out them, or repeats")
        require_metrics(self.metric, self.direction, self.metrics, self.directions)
        names = self.script.metrics
        if names and self.metric not in names and f"validation/{self.metric}" not in names:
            raise ValueError(f"metric: read {self.metric!r}; [script] metrics has: {', '.join(sorted(names))}")
        return self

    @model_validator(mode="after")
    def _population_fits(self) -> SweepConfig:
        rule = self.stopping.algorithm if self.stopping.patience is None else "patience"
        others = rule, self.search.algorithm, self.search.learns
        require_fitting(self.population, self.epochs, *others, is_script=self.experiment is None, per_set=self.per_set)
        return self

    @property
    def num_sets(self) -> int | None:
        """Number of sets of hyper-parameters that a search draws; None of a grid that runs whole."""
        if self.trials is not None or self.search.algorithm == "grid":
            return self.trials
        assert self.time_budget_s is not None
        return min(MOST_DRAWN, math.ceil(DRAWN_PER_S * self.time_budget_s))

    @property
    def per_set(self) -> int:
        """Number of trainings of each set of hyper-parameters."""
        return self.repeats * (self.folds or 1)

    @property
    def further_metrics(self) -> tuple[tuple[str, bool], ...]:
        """The metrics after the first one, each with whether a larger value is better."""
        pairs = zip_longest(self.metrics[1:], self.directions[1:])
        return tuple((name, maximizes(name, direction)) for name, direction in pairs)
