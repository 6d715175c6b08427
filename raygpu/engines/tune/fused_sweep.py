"""Fused mode: arrays of trials as ordinary Tune trials, placed, restarted and restored as Tune does all others."""

from __future__ import annotations

from typing import Any

import ray
from ray import tune
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raygpu.config import SweepConfig
from raygpu.engines.tune.array_callback import ArrayLive, ArrayObserver
from raygpu.engines.tune.array_searcher import ArraySearcher
from raygpu.engines.tune.array_trainable import ArrayActor, ArrayShared
from raygpu.engines.tune.device_slots import Places
from raygpu.engines.tune.oom_retry import Shares, signatures
from raygpu.engines.tune.process_sweep import ENLARGED, resources, shared_by_all
from raygpu.engines.tune.sweep_context import Work
from raygpu.engines.tune.trainable import device_of, share_of
from raygpu.engines.tune.tuner import fit
from raygpu.planning.gpu_shares import FusedPlan, Part
from raygpu.search.halving import Halving, mean_epochs
from raygpu.search.median import Median
from raygpu.search.samplers import Drawn
from raygpu.training.fused.groups import Grouper


def run(work: Work, plan: FusedPlan, fuser: Grouper, *, resume: bool) -> dict[str, str]:
    """Run or go on with a sweep; returns where each kept trial's last checkpoint is.

    Comes back early, with trials that have not ended, after SIGINT. Raises BadInput for an unknown metric.
    """
    config = work.config
    rule = _rule(config)
    shares = Shares(plan.alone, signatures(work.source, work.splits))
    scratch = work.folder.tune / ENLARGED
    live = ArrayLive(work.records, work.writer, work.cluster, shares, scratch, fuser, rule, work.say, work.arrays_s)
    drawn = work.proposer.trials if isinstance(work.proposer, Drawn) else []
    common = ArrayShared(
        shared=shared_by_all(work, plan.alone),
        arrays=plan.arrays,
        width=plan.members if config.gpu.width == "auto" else config.gpu.width,
        host_memory_gib={part.device: _host_memory_gib(work, part) for part in plan.arrays.parts},
        mean_epochs=_mean_epochs(config),
        keep_all=config.keep == "all",
        trials={trial.trial_id: trial for trial in drawn},
        rule=rule,
        reason=config.stopping.algorithm,
    )
    needed = {part.device: work.cluster.needed(part.device) for part in plan.arrays.parts}

    def wanted_resources(wanted: dict[str, Any]) -> tune.PlacementGroupFactory:
        part, alone = plan.arrays.on(device_of(wanted)), plan.alone.on(device_of(wanted))
        return resources(part if wanted["fused"] else alone.resized(share_of(wanted)), needed[part.device])

    live.resources = wanted_resources

    trainable = tune.with_resources(
        tune.with_parameters(ArrayActor, common=common, splits=work.splits),
        live.resources,
    )
    checkpoints = fit(
        config,
        trainable,
        ArraySearcher(work.proposer, live, plan, Places(plan.arrays), drawn=bool(drawn)),
        None,
        ArrayObserver(live),
        live,
        work.folder,
        max_concurrent=2 * max(plan.arrays.slots, plan.alone.slots),
        name=lambda wanted: wanted["array_id"],
        resume=resume,
    )
    return checkpoints | live.interrupted(work.folder.members, keep_all=common.keep_all)


def _host_memory_gib(work: Work, part: Part) -> float:
    """Return one array's host memory on a type of device: its part of a node's, where that has no GPU of its own."""
    of = [node.memory_gib for node in work.cluster.nodes if node.device_type == part.device]
    return min(of) / part.share.trials_per_gpu


def _mean_epochs(config: SweepConfig) -> float:
    """Return the epochs that a mean trial of the sweep will take."""
    assert config.epochs is not None  # torch experiments have them
    if config.stopping.algorithm == "halving":
        return mean_epochs(config.stopping.grace_epochs, config.stopping.reduction, config.epochs)
    return config.epochs


class StoppingRule:
    """An actor: the memory of a stopping rule, shared by all arrays of a sweep."""

    def __init__(self, rule: Halving | Median) -> None:
        self._rule = rule

    def decide(self, epoch: int, scores: list[tuple[str, float]]) -> list[str]:
        return list(self._rule.decide(epoch, scores))

    def forget(self, trial_ids: list[str]) -> None:
        self._rule.forget(trial_ids)

    def state(self) -> Halving | Median:
        return self._rule

    def restore(self, rule: Halving | Median) -> None:
        self._rule = rule


def _rule(config: SweepConfig) -> Any:
    """The actor of `[stopping]`; None runs every trial to its end."""
    stopping = config.stopping
    assert config.epochs is not None  # torch experiments have them
    rule: Halving | Median
    match stopping.algorithm:
        case "halving":
            rule = Halving(stopping.grace_epochs, stopping.reduction, config.epochs, maximize=config.maximize)
        case "median":
            rule = Median(stopping.grace_epochs, stopping.min_trials, maximize=config.maximize)
        case _:
            return None
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)  # lives while we do
    return ray.remote(StoppingRule).options(num_cpus=0, scheduling_strategy=here).remote(rule)
