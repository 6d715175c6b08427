"""Run a sweep in process mode: one Tune trial for each of the sweep's trials, packed on fractions of the GPUs."""

from __future__ import annotations

from typing import Any

from ray import tune

from raygpu.engines.cluster.cluster import Needed
from raygpu.engines.tune.device_slots import DeviceSlots
from raygpu.engines.tune.stopping import RuleScheduler
from raygpu.engines.tune.sweep_context import SweepContext
from raygpu.engines.tune.trial_callback import LiveSweep, TrialCallback
from raygpu.engines.tune.trial_searcher import TrialSearcher
from raygpu.engines.tune.trial_shares import Shares, signatures
from raygpu.engines.tune.trial_trainable import Shared, TrialTrainable, device_of, share_of
from raygpu.engines.tune.tuner import fit
from raygpu.planning.gpu_shares import Part, Plan
from raygpu.search.stopping import decision_epochs, stopping_rule
from raygpu.search.trials import Scoring


def run(context: SweepContext, plan: Plan, *, resume: bool) -> dict[str, str]:
    """Run or resume a sweep; return the location of each trial's last checkpoint, by trial id.

    Returns early, with trials that have not ended, after SIGINT. Raises BadInput for an unknown metric.
    """
    config = context.config
    rule = stopping_rule(config)
    scheduler = RuleScheduler(rule) if rule is not None else None
    shares = Shares(plan, signatures(context.source, context.splits))
    places = DeviceSlots(plan)
    live = LiveSweep(context, shares)
    observer = TrialCallback(live, scheduler, stop_reason=config.stopping.algorithm)
    needed = {part.device: context.cluster.needed(part.device) for part in plan.parts}

    def wanted_resources(wanted: dict[str, Any]) -> tune.PlacementGroupFactory:
        """Return the resources of a Tune trial, by its config."""
        part = plan.on(device_of(wanted))
        return resources(part.resized(share_of(wanted)), needed[part.device])

    live.resources = wanted_resources
    trainable = tune.with_resources(
        tune.with_parameters(TrialTrainable, shared=shared_by_all(context, plan), splits=context.splits),
        live.resources,
    )
    # What a script starts are the clients, and not the worker that starts it.
    pids = live.running_pids if context.source.kind != "command" else set
    with context.mps.watched(pids, context.say):
        return fit(
            context,
            trainable,
            TrialSearcher(context.sampler, live, places),
            observer,
            scheduler,
            # One more is always staged, or Tune would end a worker between two trials instead of reusing it.
            max_concurrent=2 * plan.slots,
            name=lambda trial_config: trial_config["trial_id"],
            resume=resume,
        )


def resources(part: Part, needed: Needed) -> tune.PlacementGroupFactory:
    """Return the resources that one Tune trial reserves. needed: request that places it on the part's device type."""
    bundle = {"CPU": part.cpus_per_trial, "GPU": part.share.ray_gpus, **needed.resources}
    if needed.labels is None:
        return tune.PlacementGroupFactory([bundle])
    return tune.PlacementGroupFactory([bundle], bundle_label_selector=[dict(needed.labels)])


def shared_by_all(context: SweepContext, plan: Plan) -> Shared:
    """Return the sweep's settings for the workers of all trials."""
    config = context.config
    return Shared(
        source=context.cluster.travelled(context.source),
        scoring=Scoring.of(config),
        epochs=config.epochs,
        decision_epochs=decision_epochs(config),
        plan=plan,
        precision=config.gpu.precision,
        trials=context.folder.shared_trials,
        checkpoint_s=config.checkpoint_s,
        memory_gib={
            part.device: context.cluster.device_memory_gib(part.device) if config.gpu.memory_limit else None
            for part in plan.parts
        },
        mps=context.mps.access,
    )
