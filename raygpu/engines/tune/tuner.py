"""Run one Ray Tune experiment."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ray import tune
from ray.tune.search import ConcurrencyLimiter, SearchGenerator

from raygpu.devices import disk
from raygpu.engines.tune.callback import ArrayCallback, ResourceUpdate
from raygpu.engines.tune.interruption import Interruption, checkpoints_first
from raygpu.engines.tune.live_sweep import LiveSweep
from raygpu.engines.tune.saved_state import has_state, set_before
from raygpu.engines.tune.scheduler import PausingScheduler
from raygpu.engines.tune.searcher import ArraySearcher
from raygpu.engines.tune.space_pause import SpacePause
from raygpu.engines.tune.sweep_context import SweepContext
from raygpu.engines.tune.time_limits import TimeLimits
from raygpu.engines.tune.tune_private_api import (
    RestoreFailed,
    deletions_after_snapshots,
    ended_by,
    in_started_workers,
    restored_or_refused,
    snapshots_for_ends,
    starting_workers_kept,
    trainables_kept,
    whole_snapshots,
    withhold_credentials,
)
from raygpu.errors import BadInput, RaygpuError, one_line
from raygpu.records.interrupts import handlers_kept
from raygpu.storage import S3_SAID, StorageError

SNAPSHOT_S, SNAPSHOT_PART = 1.0, 0.1
"""Least seconds between two snapshots of a sweep's state, and the largest part of the wall-clock time that they take.

What ends in between runs again if the driver is killed then."""


def fit(
    context: SweepContext,
    trainable: Any,
    searcher: ArraySearcher,
    live: LiveSweep,
    *,
    max_concurrent: int,
    resume: bool,
) -> None:
    """Run or resume an experiment in the run folder's `tune`.

    Returns early, with trials that have not ended, after Ctrl-C. Raises BadInput for an unknown metric, or if the
    tracking store cannot be opened; StorageError if object storage fails.
    """
    config, folder = context.config, context.folder
    tune_config = tune.TuneConfig(
        metric="score",
        mode="max" if config.maximize else "min",
        search_alg=Generator(searcher, max_concurrent),
        scheduler=PausingScheduler(live),
        num_samples=-1,  # the searcher says when it has no more
        reuse_actors=True,
        trial_name_creator=lambda trial: trial.config["name"],
        trial_dirname_creator=lambda trial: f"{trial.config['name']}_{trial.trial_id}",
    )
    path, file_system = folder.shared.for_ray()
    run_config = tune.RunConfig(
        name=folder.tune.name,
        storage_path=path,
        storage_filesystem=file_system,
        callbacks=[
            SpacePause(live),
            ArrayCallback(live),
            ResourceUpdate(live),
            TimeLimits(live),
            Interruption(live),
        ],
        failure_config=tune.FailureConfig(max_failures=config.cluster.max_failures),
        checkpoint_config=tune.CheckpointConfig(num_to_keep=1, checkpoint_at_end=True),
        verbose=0,
    )
    withhold_credentials()
    with _adapted_tune(live, has_more=lambda: searcher.has_more, local=context.cluster.local):
        try:
            _tuner(trainable, tune_config, run_config, live, resume=resume).fit()
        except RestoreFailed as failed:
            cause = failed.__cause__
            assert cause is not None
            if isinstance(cause, RaygpuError):
                raise cause from None
            raise BadInput(
                f"resume: {folder}: its state cannot be restored ({one_line(cause)}); its results are as they were"
            ) from cause
        except OSError as error:
            again = folder.resumed_by("sweep")
            if disk.is_full(error):
                raise StorageError(f"{folder}: {one_line(error)}; free some space, then go on with: {again}") from error
            if S3_SAID not in str(error):
                raise
            raise StorageError(f"storage: {folder.shared}: {one_line(error)}; go on with: {again}") from error
    if live.unknown_metric is not None:
        raise BadInput(live.unknown_metric)
    if (fault := context.store_fault()) is not None:
        raise fault


def _tuner(
    trainable: Any, tune_config: tune.TuneConfig, run_config: tune.RunConfig, live: LiveSweep, *, resume: bool
) -> tune.Tuner:
    """Return the restored Tuner of an earlier start of the sweep, or a new one."""
    path, file_system = live.run_directory.tune.for_ray()
    if resume and has_state(live.run_directory, live.warn):
        set_before(live.run_directory)
        return tune.Tuner.restore(path, trainable, resume_unfinished=True, storage_filesystem=file_system)
    return tune.Tuner(trainable, tune_config=tune_config, run_config=run_config)


class Generator(SearchGenerator):
    """Tune search generator that asks the searcher of an ended sweep again when the sweep is resumed: for more trials,
    or for failed ones."""

    def __init__(self, searcher: ArraySearcher, max_concurrent: int) -> None:
        super().__init__(ConcurrencyLimiter(searcher, max_concurrent))  # without it Tune stages one trial at a time

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the state, but for the end of the search."""
        super().set_state({**state, "finished": False})


@contextmanager
def _adapted_tune(live: LiveSweep, *, has_more: Callable[[], bool], local: bool) -> Iterator[None]:
    """Let Tune, meanwhile, work as a sweep needs it.

    has_more: whether the search may give a further trial now. local: whether Ray is a local one.
    """
    with (
        _silent_tune(),
        handlers_kept(signal.SIGUSR1),  # Tune sets its own and leaves it
        checkpoints_first(live),
        in_started_workers(local),
        starting_workers_kept(has_more),
        trainables_kept(),
        snapshots_for_ends(SNAPSHOT_S, SNAPSHOT_PART),
        whole_snapshots(),
        deletions_after_snapshots(),
        restored_or_refused(),
        ended_by(lambda: live.is_over or live.unknown_metric is not None),
    ):
        yield


@contextmanager
def _silent_tune() -> Iterator[None]:
    """Keep Tune's own notices off the console: raygpu reports the same facts itself."""
    logger = logging.getLogger("ray.tune")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
