"""Score the models of a sweep's winner on the test data, while Ray is still there."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from raygpu.engines.cluster.scoring_worker import ScoringFailed, ScoringWork, scores_on_test
from raygpu.engines.tune.memory_limit import limit_memory
from raygpu.engines.tune.sweep_context import SweepContext
from raygpu.experiment import Splits
from raygpu.planning.gpu_shares import ArrayPlan, Plan, Share
from raygpu.search.trials import Trial


def score_winner(
    context: SweepContext, plan: Plan | ArrayPlan, tested: Splits, models: Mapping[str, tuple[Trial, str]]
) -> dict[str, dict[str, float]]:
    """Return the metrics of models on the test data, by trial id; in one worker with the share that the plan gives a
    trial, or with a whole GPU if that is too small.

    tested: the test data in place of the validation data. models: trial and URI of its checkpoint, by trial id. Raises
    ScoringFailed.
    """
    alone = plan.alone if isinstance(plan, ArrayPlan) else plan
    try:
        return scores_on_test(_work(context, alone, alone.parts[0].share), tested, models)
    except ScoringFailed as failure:
        if not failure.out_of_memory or alone.parts[0].share.trials_per_gpu == 1:
            raise
    return scores_on_test(_work(context, alone, Share()), tested, models)


def _work(context: SweepContext, plan: Plan, share: Share) -> ScoringWork:
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
