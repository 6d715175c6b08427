"""Start of a sweep's population: its rules, its actor, and whether all trials train at once."""

from __future__ import annotations

from collections.abc import Sequence

from raygpu.engines.cluster.node_actors import start_actor
from raygpu.engines.tune.population_actor import PopulationActor, PopulationSettings
from raygpu.engines.tune.sweep_context import SweepContext
from raygpu.planning.gpu_shares import ArrayPlan, Plan
from raygpu.search.exploration import changing, populations, taken_over
from raygpu.search.population import Population
from raygpu.search.samplers import DrawnTrials
from raygpu.search.signature import array_members
from raygpu.search.space import parse
from raygpu.search.trials import Trial
from raygpu.training.fused.groups import Grouper

FOLDER = "population"
"""Folder, within Tune's, for the parameters that trials of different workers give each other."""


def population_settings(
    context: SweepContext, plan: Plan | ArrayPlan, grouper: Grouper | None
) -> PopulationSettings | None:
    """Start the population of a sweep; None for a sweep without one."""
    config = context.config
    if config.population.interval is None:
        return None
    assert config.epochs is not None  # the schema asks for them
    assert isinstance(context.sampler, DrawnTrials)
    trials = context.sampler.trials
    space = parse(config.space, config.search.algorithm)
    parameters = changing(config.population, space)
    names = taken_over(parameters, space, context.source.kind, context.read)
    population = Population(
        config.population,
        parameters,
        populations(trials, names),
        epochs=config.epochs,
        seed=config.seed,
        maximize=config.maximize,
        together=all_at_once(trials, plan, grouper),
    )
    return PopulationSettings(
        start_actor(PopulationActor, population),
        frozenset(config.population.epochs(config.epochs)),
        names,
        context.folder.tune / FOLDER,
    )


def all_at_once(trials: Sequence[Trial], plan: Plan | ArrayPlan, grouper: Grouper | None) -> bool:
    """Return whether all trials of a sweep train at the same time; not where arrays and trials alone share devices."""
    if not isinstance(plan, ArrayPlan):
        return len(trials) <= plan.slots
    assert grouper is not None
    groups = grouper.groups(trials)
    arrays = array_members(groups, plan.arrays.slots, plan.members)
    alone = sum(len(group.trials) for group in groups if group.reason is not None)
    return len(arrays) <= plan.arrays.slots if not alone else not arrays and alone <= plan.alone.slots
