"""Process mode: a Tune trial for each of the sweep's trials, packed on fractions of the GPUs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ray import tune
from ray.tune.schedulers import ASHAScheduler, MedianStoppingRule, TrialScheduler

from raygpu.config import SweepConfig
from raygpu.engines.actor import Shared, TrialActor
from raygpu.engines.cluster import Cluster
from raygpu.engines.observer import Live, Observer, Writer
from raygpu.engines.searcher import TrialSearcher
from raygpu.errors import BadInput
from raygpu.exits import handlers_kept
from raygpu.experiment import Source, Splits
from raygpu.halving import rungs
from raygpu.packing import Plan
from raygpu.records import Records
from raygpu.runfolder import RunFolder
from raygpu.search import Proposer
from raygpu.trials import Scoring


def run(
    config: SweepConfig,
    source: Source,
    splits: Splits | None,
    proposer: Proposer,
    plan: Plan,
    cluster: Cluster,
    records: Records,
    writer: Writer,
    folder: RunFolder,
    *,
    resume: bool,
) -> dict[str, str]:
    """Run or go on with a sweep; returns the folder of each trial's last checkpoint.

    Comes back early, with trials that have not ended, after SIGINT. Raises BadInput for an unknown metric.
    """
    scheduler = _scheduler(config)
    live = Live(records, writer, cluster, plan.share.fraction)
    observer = Observer(live, scheduler, stop_reason=config.stopping.algorithm)
    trainable = tune.with_resources(
        tune.with_parameters(TrialActor, shared=_shared(config, source, plan, folder), splits=splits),
        tune.PlacementGroupFactory([{"CPU": plan.cpus_per_trial, "GPU": plan.share.ray_gpus}]),
    )
    tune_config = tune.TuneConfig(
        metric="score",
        mode="max" if config.maximize else "min",
        search_alg=TrialSearcher(proposer),
        scheduler=scheduler,
        num_samples=-1,  # the searcher says when it has no more
        # One more is always staged, or Tune would end a worker between two trials instead of reusing it.
        max_concurrent_trials=2 * plan.slots,
        reuse_actors=True,
        trial_name_creator=lambda trial: trial.config["trial_id"],
        trial_dirname_creator=lambda trial: f"{trial.config['trial_id']}_{trial.trial_id}",
    )
    run_config = tune.RunConfig(
        name=folder.tune.name,
        storage_path=str(folder.path),
        stop=_UnknownMetric(live),
        callbacks=[observer],
        failure_config=tune.FailureConfig(max_failures=config.cluster.max_failures),
        checkpoint_config=tune.CheckpointConfig(num_to_keep=1, checkpoint_at_end=True),
        verbose=0,
    )
    with _silent_tune(), handlers_kept():
        if resume and tune.Tuner.can_restore(str(folder.tune)):
            tuner = tune.Tuner.restore(str(folder.tune), trainable, resume_unfinished=True)
        else:
            tuner = tune.Tuner(trainable, tune_config=tune_config, run_config=run_config)
        tuner.fit()
    if live.unknown_metric is not None:
        raise BadInput(live.unknown_metric)
    return live.checkpoints


class _UnknownMetric(tune.Stopper):
    """Ends the sweep when the first result shows that its metric does not exist."""

    def __init__(self, live: Live) -> None:
        self.live = live

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self.live.unknown_metric is not None


def _shared(config: SweepConfig, source: Source, plan: Plan, folder: RunFolder) -> Shared:
    return Shared(
        source=source,
        scoring=Scoring(config.metric, config.maximize),
        epochs=config.epochs,
        decision_epochs=_decision_epochs(config),
        threads=plan.threads_per_trial,
        precision=config.gpu.precision,
        trials_folder=str(folder.trials),
        checkpoint_s=config.checkpoint_s,
    )


def _decision_epochs(config: SweepConfig) -> frozenset[int] | None:
    match config.stopping.algorithm:
        case "halving":
            assert config.epochs is not None  # the schema asks for it
            return frozenset(rungs(config.stopping.grace_epochs, config.stopping.reduction, config.epochs))
        case "median":
            return None
    return frozenset()


def _scheduler(config: SweepConfig) -> TrialScheduler | None:
    """Tune's own scheduler of `[stopping]`; None runs every trial to its end."""
    stopping = config.stopping
    match stopping.algorithm:
        case "halving":
            assert config.epochs is not None  # the schema asks for it
            return ASHAScheduler(
                time_attr="epoch",
                max_t=config.epochs,
                grace_period=min(stopping.grace_epochs, config.epochs),
                reduction_factor=stopping.reduction,
            )
        case "median":
            return MedianStoppingRule(
                time_attr="epoch",
                grace_period=stopping.grace_epochs,
                min_samples_required=stopping.min_trials,
                hard_stop=True,
            )
    return None


@contextmanager
def _silent_tune() -> Iterator[None]:
    """Tune's own notices, told by raygpu in its own words, kept off the console."""
    logger = logging.getLogger("ray.tune")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
