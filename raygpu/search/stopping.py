"""The stopping rule of a sweep: one for every mode, so that the mode never changes which trials stop."""

from __future__ import annotations

import math

from raygpu.config import SweepConfig
from raygpu.search import hyperband
from raygpu.search.halving import Halving, rungs
from raygpu.search.hyperband import Hyperband
from raygpu.search.median import Median
from raygpu.search.patience import Patience, WithPatience

Rule = Halving | Hyperband | Median | WithPatience


def stopping_rule(config: SweepConfig) -> Rule | None:
    """Return the rule of `[stopping]`, with patience if it is asked for; None runs every trial to its end."""
    stopping, rule = config.stopping, _comparing(config)
    if stopping.patience is None:
        return rule
    patience = Patience(stopping.patience, stopping.min_delta, stopping.grace_epochs, maximize=config.maximize)
    return WithPatience(rule, patience)


def _comparing(config: SweepConfig) -> Halving | Hyperband | Median | None:
    """Return the rule that compares trials; None without one."""
    stopping, maximize = config.stopping, config.maximize
    match stopping.algorithm:
        case "halving":
            assert config.epochs is not None  # the schema asks for it
            return Halving(stopping.grace_epochs, stopping.reduction, config.epochs, maximize=maximize)
        case "hyperband":
            assert config.epochs is not None
            return Hyperband(
                stopping.grace_epochs,
                stopping.reduction,
                config.epochs,
                maximize=maximize,
                brackets=stopping.brackets,
            )
        case "median":
            return Median(stopping.grace_epochs, stopping.min_trials, maximize=maximize)
    return None


def too_late(config: SweepConfig) -> dict[str, int]:
    """Return the settings of `[stopping]` whose rule can stop no trial before its last epoch, each with the epoch after
    which it first could; empty where the number of epochs is not known."""
    stopping, first = config.stopping, {}
    if stopping.algorithm != "none":
        first["algorithm"] = stopping.grace_epochs
    if stopping.patience is not None:
        first["patience"] = max(stopping.grace_epochs, 1 + stopping.patience)  # the first epoch improves on none
    return {name: epoch for name, epoch in first.items() if config.epochs is not None and epoch >= config.epochs}


def decision_epochs(config: SweepConfig) -> frozenset[int] | None:
    """Return the epochs at which the rule may stop a trial; None for every epoch."""
    if config.stopping.patience is not None:
        return None
    match config.stopping.algorithm:
        case "halving" | "hyperband":
            assert config.epochs is not None  # the schema asks for it
            return frozenset(rungs(config.stopping.grace_epochs, config.stopping.reduction, config.epochs))
        case "median":
            return None
    return frozenset()


def expected_epochs(config: SweepConfig) -> float:
    """Return the mean number of epochs of a trial, early stops by halving and hyperband included; 1 if not known.

    Of a set with repeats, the rule may stop the first trial; the others then do not run at all.
    """
    if config.epochs is None:
        return 1
    first = hyperband.mean_epochs(_stops_of_first(config), config.epochs)
    return (first + (config.per_set - 1) * expected_survival(config) * config.epochs) / config.per_set


def expected_stops(config: SweepConfig) -> dict[int, float]:
    """Return the share of trials that the rule is expected to stop, by epoch; empty where nothing is known."""
    return {} if config.per_set > 1 else _stops_of_first(config)  # most trials of sets with repeats cannot be stopped


def expected_survival(config: SweepConfig) -> float:
    """Return the share of trials that the rule is expected to let run to their end; 1 where nothing is known."""
    return math.prod(1 - share for share in _stops_of_first(config).values())


def _stops_of_first(config: SweepConfig) -> dict[int, float]:
    """Return the share that is expected to stop at each epoch, of the trials that the rule compares."""
    stopping = config.stopping
    if config.epochs is None or stopping.algorithm not in ("halving", "hyperband"):
        return {}
    brackets = 1 if stopping.algorithm == "halving" else stopping.brackets
    return hyperband.stops(stopping.grace_epochs, stopping.reduction, config.epochs, brackets)
