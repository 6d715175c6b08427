"""Run a sweep on Ray Tune: arrays of trials, and trials alone as arrays of one, are ordinary Tune trials. Then score
the winner's models on the test data, while Ray is still there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ray import tune

from raygpu.engines.cluster.cluster import PlacementRequest
from raygpu.engines.cluster.node_actors import start_actor
from raygpu.engines.cluster.scoring_worker import ScoringFailed, ScoringWork, scores_on_test
from raygpu.engines.tune.array_config import ArrayConfig
from raygpu.engines.tune.device_slots import DeviceSlots
from raygpu.engines.tune.live_sweep import LiveSweep
from raygpu.engines.tune.memory_limit import limit_memory
from raygpu.engines.tune.oom_retry import RetryShares, signatures
from raygpu.engines.tune.population_actor import PopulationActor, PopulationSettings
from raygpu.engines.tune.rule_actor import RuleActor
from raygpu.engines.tune.searcher import ArraySearcher
from raygpu.engines.tune.shared_settings import ArraySettings, SharedSettings, part_of
from raygpu.engines.tune.sweep_context import SweepContext
from raygpu.engines.tune.trainable import ArrayTrainable
from raygpu.engines.tune.tuner import fit
from raygpu.experiment import Splits
from raygpu.planning.gpu_shares import ArrayPlan, DevicePlan, Plan, Share
from raygpu.search.exploration import changing, populations, taken_over
from raygpu.search.population import Population
from raygpu.search.repeats import known_trials
from raygpu.search.samplers import DrawnTrials
from raygpu.search.scoring import Scoring
from raygpu.search.signature import array_members
from raygpu.search.space import parse
from raygpu.search.stopping import decision_epochs, expected_epochs, stopping_rule
from raygpu.search.trials import Trial
from raygpu.training.fused.groups import Grouper

FOLDER = "population"
"""Folder, within Tune's, for the parameters that trials of different workers give each other."""


def run(context: SweepContext, plan: Plan | ArrayPlan, grouper: Grouper | None, *, resume: bool) -> dict[str, str]:
    """Run or resume a sweep; return the location of each kept trial's checkpoint, by trial id.

    plan: in process mode the trials', else that of the arrays and of the trials alone beside them. grouper: groups
    trials by signature; None in process mode. Returns early, with trials that have not ended, after SIGINT. Raises
    BadInput for an unknown metric.
    """
    arrays, alone = (plan.arrays, plan.alone) if isinstance(plan, ArrayPlan) else (plan, plan)
    stopping = stopping_rule(context.config)
    rule = start_actor(RuleActor, stopping) if stopping is not None else None
    population = population_settings(context, plan, grouper)
    shared = _shared_settings(context, plan, alone, rule, population)
    live = LiveSweep(context, RetryShares(alone, signatures(context.source, context.splits)), grouper, rule)
    live.population = population and population.actor
    needed = {part.device: context.cluster.needed(part.device) for part in (*arrays.parts, *alone.parts)}

    fused = shared.fused.plan if shared.fused is not None else None

    def wanted_resources(config: dict[str, Any]) -> tune.PlacementGroupFactory:
        """Return the resources of a Tune trial, by its config."""
        # Tune unpickles this function twice for each trial, with all that it refers to: not the trials.
        part = part_of(ArrayConfig.of(config), alone, fused)
        return _resources(part, needed[part.device])

    live.resources, live.at_once = wanted_resources, alone.slots
    trainable = tune.with_resources(
        tune.with_parameters(ArrayTrainable, shared=shared, splits=context.folds or context.splits), wanted_resources
    )
    # Ray's dashboard calls an actor by the last part of its class' qualified name; Tune compares the other name.
    trainable.__qualname__ = context.folder.name.replace(".", "_")
    searcher = ArraySearcher(context.sampler, live, plan, DeviceSlots(arrays), drawn=bool(shared.trials))
    # What a script starts are the clients, and not the worker that starts it.
    pids = live.running_pids if context.source.kind != "command" else set
    with context.mps.watched(pids, context.warn):
        # One more is staged for each slot, or Tune would end a worker between two trials instead of reusing it; a
        # search that learns has `WorkerReuse` for that.
        fit(context, trainable, searcher, live, max_concurrent=2 * max(arrays.slots, alone.slots), resume=resume)
    if population is not None and not live.stopping:
        population.folder.remove()
    return live.checkpoints.own | live.interrupted(context.folder.extracted, keep_all=shared.keep_all)


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


def _shared_settings(
    context: SweepContext, plan: Plan | ArrayPlan, alone: Plan, rule: Any, population: PopulationSettings | None
) -> SharedSettings:
    """Return the sweep's settings for the workers of all trials."""
    config = context.config
    drawn = known_trials(context.sampler) or []
    return SharedSettings(
        source=context.cluster.travelled(context.source),
        scoring=Scoring.of(config),
        epochs=config.epochs,
        folds=config.folds,
        precision=config.gpu.precision,
        alone=alone,
        fused=_fused_settings(context, plan) if isinstance(plan, ArrayPlan) else None,
        trials={trial.trial_id: trial for trial in drawn},
        keep_all=config.keep == "all" or config.per_set > 1,  # which set has the best mean is known at the end
        rule=rule,
        decision_epochs=decision_epochs(config),
        stop_reason=config.stopping.algorithm,
        population=population,
        trial_files=context.folder.shared_trials,
        checkpoint_s=config.checkpoint_s,
        memory_gib={
            part.device: context.cluster.device_memory_gib(part.device) if config.gpu.memory_limit else None
            for part in alone.parts
        },
        mps=context.mps.access,
        needs=context.needs,
    )


def _fused_settings(context: SweepContext, plan: ArrayPlan) -> ArraySettings:
    config = context.config
    return ArraySettings(
        plan=plan.arrays,
        width=plan.members if plan.is_split else None if config.gpu.width == "auto" else config.gpu.width,
        host_memory_gib={part.device: _host_memory_gib(context, part) for part in plan.arrays.parts},
        mean_epochs=expected_epochs(config),
        profiles=config.profiles,
    )


def _host_memory_gib(context: SweepContext, part: DevicePlan) -> float:
    """Return the host memory in GiB for one array that trains on a CPU: its part of the smallest node's memory."""
    of_type = [node.memory_gib for node in context.cluster.nodes if node.device_type == part.device]
    return min(of_type) / part.share.trials_per_gpu


def _resources(part: DevicePlan, needed: PlacementRequest) -> tune.PlacementGroupFactory:
    """Return the resources that one Tune trial reserves. needed: request that places it on the part's device type."""
    bundle = {"CPU": part.cpus_per_trial, "GPU": part.share.ray_gpus, **needed.resources}
    if needed.labels is None:
        return tune.PlacementGroupFactory([bundle])
    return tune.PlacementGroupFactory([bundle], bundle_label_selector=[dict(needed.labels)])


def score_winner(
    context: SweepContext,
    plan: Plan | ArrayPlan,
    tested: Splits,
    models: Mapping[str, tuple[Trial, str]],
    *,
    say: Callable[[str], None],
) -> dict[str, dict[str, float]]:
    """Return the metrics of models on the test data, by trial id; in one worker with the share that the plan gives a
    trial, or with a whole GPU if that is too small.

    tested: the test data in place of the validation data. models: trial and URI of its checkpoint, by trial id. say:
    called with lines on the evaluations. Raises ScoringFailed.
    """
    alone = plan.alone if isinstance(plan, ArrayPlan) else plan
    try:
        return scores_on_test(_scoring_work(context, alone, alone.parts[0].share), tested, models, say=say)
    except ScoringFailed as failure:
        if not failure.out_of_memory or alone.parts[0].share.trials_per_gpu == 1:
            raise
    return scores_on_test(_scoring_work(context, alone, Share()), tested, models, say=say)


def _scoring_work(context: SweepContext, plan: Plan, share: Share) -> ScoringWork:
    """Return the settings of a worker with a share of the plan's fastest type of device."""
    part = plan.parts[0].resized(share)
    gpu = context.config.gpu
    memory_gib = context.cluster.device_memory_gib(part.device) if gpu.memory_limit else None
    return ScoringWork(
        source=context.cluster.travelled(context.source),
        precision=gpu.precision,
        threads=part.threads_per_trial,
        cpus=part.cpus_per_trial,
        gpus=share.ray_gpus,
        needed=context.cluster.needed(part.device),
        limit=partial(limit_memory, context.source.kind, memory_gib, share),
    )
