"""The stopping rule of a sweep: one for every mode, so that the mode never changes which trials stop."""

from __future__ import annotations

from raygpu.config import SweepConfig
from raygpu.search.halving import Halving, mean_epochs, rungs
from raygpu.search.median import Median

Rule = Halving | Median


def stopping_rule(config: SweepConfig) -> Rule | None:
    """Return the rule of `[stopping]`; None runs every trial to its end."""
    stopping = config.stopping
    match stopping.algorithm:
        case "halving":
            assert config.epochs is not None  # the schema asks for it
            return Halving(stopping.grace_epochs, stopping.reduction, config.epochs, maximize=config.maximize)
        case "median":
            return Median(stopping.grace_epochs, stopping.min_trials, maximize=config.maximize)
    return None


def decision_epochs(config: SweepConfig) -> frozenset[int] | None:
    """Return the epochs at which the rule may stop a trial; None for every epoch."""
    match config.stopping.algorithm:
        case "halving":
            assert config.epochs is not None  # the schema asks for it
            return frozenset(rungs(config.stopping.grace_epochs, config.stopping.reduction, config.epochs))
        case "median":
            return None
    return frozenset()


def expected_epochs(config: SweepConfig) -> float:
    """Return the mean number of epochs of a trial, early stops by halving included; 1 if not known.

    Of a set with repeats, halving may stop the first trial; the others then do not run at all.
    """
    stopping = config.stopping
    if config.epochs is None:
        return 1
    if stopping.algorithm == "halving":
        first = mean_epochs(stopping.grace_epochs, stopping.reduction, config.epochs)
        return (first + (config.per_set - 1) * expected_survival(config) * config.epochs) / config.per_set
    return config.epochs


def expected_stops(config: SweepConfig) -> dict[int, float]:
    """Return the share of trials that the rule is expected to stop, by epoch; empty where nothing is known."""
    stopping = config.stopping
    if stopping.algorithm != "halving" or config.epochs is None:
        return {}
    if config.per_set > 1:  # most trials cannot be stopped
        return {}
    return dict.fromkeys(rungs(stopping.grace_epochs, stopping.reduction, config.epochs), 1 - 1 / stopping.reduction)


def expected_survival(config: SweepConfig) -> float:
    """Return the share of trials that the rule is expected to let run to their end; 1 where nothing is known."""
    stopping = config.stopping
    if stopping.algorithm != "halving" or config.epochs is None:
        return 1.0
    return stopping.reduction ** -len(rungs(stopping.grace_epochs, stopping.reduction, config.epochs))
