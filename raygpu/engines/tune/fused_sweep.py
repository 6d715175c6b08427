"""Run a sweep in fused mode: arrays of trials are ordinary Tune trials, which Tune places, restarts and restores."""

from __future__ import annotations

from typing import Any

from ray import tune

from raygpu.engines.tune.array_callback import ArrayCallback, LiveArrays
from raygpu.engines.tune.array_searcher import ArraySearcher
from raygpu.engines.tune.array_trainable import ArrayShared, ArrayTrainable
from raygpu.engines.tune.device_slots import DeviceSlots
from raygpu.engines.tune.process_sweep import resources, shared_by_all
from raygpu.engines.tune.stopping import rule_actor
from raygpu.engines.tune.sweep_context import SweepContext
from raygpu.engines.tune.trial_shares import Shares, signatures
from raygpu.engines.tune.trial_trainable import device_of, share_of
from raygpu.engines.tune.tuner import fit
from raygpu.planning.gpu_shares import FusedPlan, Part
from raygpu.search.samplers import DrawnTrials
from raygpu.search.stopping import expected_epochs, stopping_rule
from raygpu.training.fused.groups import Grouper


def run(context: SweepContext, plan: FusedPlan, fuser: Grouper, *, resume: bool) -> dict[str, str]:
    """Run or resume a sweep; return the location of each kept trial's last checkpoint, by trial id.

    Returns early, with trials that have not ended, after SIGINT. Raises BadInput for an unknown metric.
    """
    config = context.config
    rule = rule_actor(stopping_rule(config))
    shares = Shares(plan.alone, signatures(context.source, context.splits))
    live = LiveArrays(context, shares, fuser, rule)
    drawn = context.sampler.trials if isinstance(context.sampler, DrawnTrials) else []
    common = ArrayShared(
        shared=shared_by_all(context, plan.alone),
        arrays=plan.arrays,
        width=plan.members if config.gpu.width == "auto" else config.gpu.width,
        host_memory_gib={part.device: _host_memory_gib(context, part) for part in plan.arrays.parts},
        mean_epochs=expected_epochs(config),
        keep_all=config.keep == "all",
        trials={trial.trial_id: trial for trial in drawn},
        rule=rule,
        reason=config.stopping.algorithm,
    )
    needed = {part.device: context.cluster.needed(part.device) for part in plan.arrays.parts}

    def wanted_resources(wanted: dict[str, Any]) -> tune.PlacementGroupFactory:
        """Return the resources of a Tune trial, an array or a trial alone, by its config."""
        part, alone = plan.arrays.on(device_of(wanted)), plan.alone.on(device_of(wanted))
        return resources(part if wanted["fused"] else alone.resized(share_of(wanted)), needed[part.device])

    live.resources = wanted_resources

    trainable = tune.with_resources(
        tune.with_parameters(ArrayTrainable, common=common, splits=context.splits),
        live.resources,
    )
    checkpoints = fit(
        context,
        trainable,
        ArraySearcher(context.sampler, live, plan, DeviceSlots(plan.arrays), drawn=bool(drawn)),
        ArrayCallback(live),
        None,
        max_concurrent=2 * max(plan.arrays.slots, plan.alone.slots),
        name=lambda wanted: wanted["array_id"],
        resume=resume,
    )
    return checkpoints | live.interrupted(context.folder.members, keep_all=common.keep_all)


def _host_memory_gib(context: SweepContext, part: Part) -> float:
    """Return the host memory in GiB for one array that trains on a CPU: its part of the smallest node's memory."""
    of = [node.memory_gib for node in context.cluster.nodes if node.device_type == part.device]
    return min(of) / part.share.trials_per_gpu
