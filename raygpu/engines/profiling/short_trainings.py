"""Train data-parallel for a few seconds each, to compare different shares of a batch."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from raygpu.config import TrainConfig
from raygpu.engines.cluster.cluster import Cluster
from raygpu.engines.profiling.turns_worker import train_by_turns
from raygpu.engines.profiling.workload import Workload
from raygpu.engines.train.production import STOPPING, ProductionRun, ProductionSetup
from raygpu.engines.train.rank_group import WorkerTask
from raygpu.engines.train.worker_reports import Joined, Notice, TurnMailbox, WorkerReport
from raygpu.errors import RaygpuError
from raygpu.experiment import Splits, subset
from raygpu.planning.worker_devices import WorkerDevices
from raygpu.records.training_progress import Progress
from raygpu.search.scoring import Scoring
from raygpu.storage import Storage
from raygpu.training.distributed.batch_split import spread
from raygpu.training.distributed.coordinator import FIRST
from raygpu.training.distributed.ranks import ParallelSettings

EPOCHS = 1_000_000
"""Number of epochs asked for, more than a short training has time for."""
STEPS = 16
"""Minimum number of steps in an epoch of a short training."""
EVALUATED = 64
"""Number of samples in an evaluation, if the data are repeated to fill an epoch."""


@dataclass(frozen=True, slots=True)
class _Job:
    """A Ray Train job whose workers take turns of one global batch."""

    global_batch: int
    running: ProductionRun
    reports: Generator[list[WorkerReport]]


@dataclass(slots=True)
class _Steady:
    """Throughput of a training after its first steps."""

    enough_s: float
    skipped: int = 0
    samples: list[int] = field(default_factory=list)
    wall_s: float = 0.0
    devices: dict[int, int] = field(default_factory=dict)
    """Index of each rank's device."""

    def rates(self) -> tuple[float, ...]:
        """Return the samples/s of each rank, in the order of the devices: Ray numbers the ranks in any order."""
        ranks = sorted(self.devices, key=lambda rank: (self.devices[rank], rank))
        return tuple(self.samples[rank] / self.wall_s for rank in ranks)

    def take(self, report: Any) -> None:
        """Take a worker's report: note a rank's device, or add its progress after the first steps."""
        if isinstance(report, Joined):
            self.devices[report.rank] = report.device
        if not isinstance(report, Progress) or 0 not in self.devices:  # rank 0 still tells of the turn before
            return
        if self.skipped < len(FIRST):  # the first steps allocate and trace
            self.skipped += 1
            return
        self.samples = [a + b for a, b in zip(self.samples or [0] * len(report.samples), report.samples, strict=True)]
        self.wall_s += report.wall_s

    def enough(self) -> bool:
        """Return whether `enough_s` seconds have been measured."""
        return self.wall_s >= self.enough_s


class ShortTrainings:
    """Short trainings of one set of hyper-parameters on all devices, by turns in one Ray Train job. To be closed.

    checkpoints: storage that every node sees, for the job's own files. least: smallest number of samples on which the
    model can be trained at once.
    """

    def __init__(
        self,
        config: TrainConfig,
        workload: Workload,
        cluster: Cluster,
        where: WorkerDevices,
        checkpoints: Storage,
        say: Callable[[str], None],
        least: int = 1,
    ) -> None:
        self.config = config
        self.least = least
        self.workload = workload
        self.cluster = cluster
        self.where = where
        self.checkpoints = checkpoints
        self.say = say
        self.readings: dict[int, Any] = {}
        """Last NVML readings while a training ran, by device index."""
        self._job: _Job | None = None

    def train(self, shares: Sequence[int], seconds: float) -> tuple[float, ...]:
        """Train with these shares of a batch; return the samples/s of each rank after the first steps.

        shares: samples of each rank in a step, in the order of the devices. seconds: duration of the measurement.
        Raises TrainingFailed, RaygpuError if the training diverges first, and KeyboardInterrupt after Ctrl-C.
        """
        self.say(f"training with {' + '.join(map(str, shares))} samples a step ...")
        if self._job is not None and self._job.global_batch != sum(shares):
            self.close()
        job, self._job = self._job or self._start(sum(shares)), None  # kept if it is still there at the turn's end
        steady, interrupted = _Steady(seconds), False
        job.running.mailbox.begin_turn.remote(tuple(shares))
        try:
            for reports in job.reports:
                for report in reports:
                    steady.take(report)
                    if report is STOPPING:
                        self.say("stopping after this turn; Ctrl-C again stops at once")
                        interrupted = True
                    elif isinstance(report, Notice):
                        self.say(report.line)
                self._look()
                if steady.enough() and not interrupted:
                    self._job = job
                    return steady.rates()
        finally:
            if self._job is None:
                job.reports.close()
                self.checkpoints.remove()
        _require_not_interrupted(job.running)
        raise RaygpuError("the training diverged before its speed was measured; take a smaller lr")

    def close(self) -> None:
        """End the job's workers, and remove its files. Raises KeyboardInterrupt after Ctrl-C."""
        if self._job is None:
            return
        job, self._job = self._job, None
        job.running.stop()
        for _ in job.reports:
            pass
        self.checkpoints.remove()
        _require_not_interrupted(job.running)

    def _start(self, global_batch: int) -> _Job:
        assert self.workload.splits is not None  # functions and scripts have no batches to split
        running = ProductionRun(
            ProductionSetup(
                self.cluster,
                self._task(global_batch),
                _at_least(self.workload.splits, STEPS * global_batch),
                self.where,
                self.checkpoints,
                keep=1,
                max_failures=0,
                work=train_by_turns,
                mailbox=TurnMailbox,
            )
        )
        return _Job(global_batch, running, iter(running))

    def _task(self, global_batch: int) -> WorkerTask:
        config = self.config
        return WorkerTask(
            source=self.cluster.travelled(self.workload.source),
            trial=self.workload.trial,
            epochs=EPOCHS,
            precision=self.workload.precision,
            threads=max(1, int(self.where.cpus)),
            parallel=self._parallel(global_batch),
            devices=self.cluster.places(),
            scoring=Scoring(config.metric, config.maximize),
            checkpoint_epochs=EPOCHS,
            checkpoint_s=None,
            shared=self.where.shared,
            simulated=self.where.simulated,
        )

    def _parallel(self, global_batch: int) -> ParallelSettings:
        """Return the settings with which raygpu.train takes such a batch, in as many parts; the learning rate is that
        of the hyper-parameters: a short training has no time to rise to a scaled one."""
        assert self.workload.splits is not None
        values = dict(self.workload.trial.hyperparameters)
        config = self.config.model_copy(
            update={"ratios": "equal", "lr_scaling": "none", "changes": [], "hyperparameters": values}
        )
        samples = max(global_batch, self.workload.splits.samples_per_epoch)  # they are repeated to fill an epoch
        parallel = spread(config, self.where.ranks, samples, global_batch=global_batch).parallel
        return replace(parallel, least=self.least)

    def _look(self) -> None:
        self.readings |= {index: reading.metrics() for index, reading in self.cluster.readings().items()}


def _require_not_interrupted(running: ProductionRun) -> None:
    """Raise KeyboardInterrupt if a job has ended because of Ctrl-C."""
    if running.ended is not None and running.ended.interrupted:
        raise KeyboardInterrupt("interrupted; nothing was written")


def _at_least(splits: Splits, count: int) -> Splits:
    """Repeat the training data to at least `count` samples, so that no epoch ends during the measurement."""
    if splits.num_train >= count:
        return replace(splits, per_epoch=None)
    rows = np.arange(count) % splits.num_train
    inputs, targets = subset(splits.train_inputs, rows), subset(splits.train_targets, rows)
    few = slice(0, EVALUATED)
    return Splits(inputs, targets, subset(splits.validation_inputs, few), subset(splits.validation_targets, few))
