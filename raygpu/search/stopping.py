"""The stopping rule of a sweep: one for every mode, so that the mode never changes which trials stop."""

from __future__ import annotations

from raygpu.config import SweepConfig
from raygpu.search import hyperband
from raygpu.search.halving import Halving, mean_epochs, rungs
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
    """Return the mean number of epochs of a trial, early stops by halving and hyperband included; 1 if not known."""
    stopping = config.stopping
    if config.epochs is None:
        return 1
    if stopping.algorithm == "halving":
        return mean_epochs(stopping.grace_epochs, stopping.reduction, config.epochs)
    if stopping.algorithm == "hyperband":
        return hyperband.mean_epochs(stopping.grace_epochs, stopping.reduction, config.epochs, stopping.brackets)
    return config.epochs


def expected_stops(config: SweepConfig) -> dict[int, float]:
    """Return the share of trials that the rule is expected to stop, by epoch; empty where nothing is known."""
    stopping = config.stopping
    if config.epochs is None:
        return {}
    if stopping.algorithm == "hyperband":
        return hyperband.stops(stopping.grace_epochs, stopping.reduction, config.epochs, stopping.brackets)
    if stopping.algorithm != "halving":
        return {}
    return dict.fromkeys(rungs(stopping.grace_epochs, stopping.reduction, config.epochs), 1 - 1 / stopping.reduction)
