"""Worker of a production training under Ray Train: it trains, saves checkpoints, and reports to the driver.

Ray Train calls `train` on every worker, and again on new workers after one was lost, from the last checkpoint on.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
import ray.train

from raygpu.config.sections import Precision
from raygpu.config.source import Source
from raygpu.devices.out_of_memory import is_out_of_memory
from raygpu.engines.train.worker_reports import Failed, Joined, Report, Saved
from raygpu.experiment import Splits
from raygpu.records.training_progress import Best, Progress, Restored, Wish
from raygpu.search.trials import Scoring, Trial
from raygpu.storage import Storage
from raygpu.training.base import Settings, surroundings
from raygpu.training.distributed.ranks import OneRank, ParallelSettings, ParallelTraining, Ranks

PROGRESS = "progress.json"
"""File of a checkpoint with the training's progress and its best score."""
LOST_PEER = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer", "ProcessGroup", "Collective ops")
"""Phrases in the message of an error that a rank raises because another rank is lost."""
LOST_PEER_ERRORS = {"DistError", "UnavailableError", "AbortedError"}
"""Types of such errors, by name: of torch.distributed, and of TensorFlow."""


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """Settings of a training for every worker, sent through Ray's object store."""

    source: Source
    trial: Trial
    epochs: int
    precision: Precision
    threads: int
    parallel: ParallelSettings
    """Division of a batch; its ratios are in the order of `devices`."""
    devices: tuple[tuple[str, str], ...]
    """Node id and Ray's name of each device, in the order of their indices."""
    scoring: Scoring
    checkpoint_epochs: int
    checkpoint_s: float | None
    shared: bool
    """Whether workers share a GPU, or the GPU is simulated."""
    simulated: bool
    """Whether the GPU is simulated."""
    each: int = 1
    """Number of devices of a worker."""
    warm_start: str | None = None
    """URI of a trial's checkpoint, whose parameters the training begins with; None for fresh parameters."""


@dataclass(slots=True)
class _Wishes:
    """Requests of rank 0 to all ranks: the user's stop, and checkpoints by time. Never waits for the mailbox."""

    mailbox: Any
    checkpoint_s: float | None
    _asked: Any = None
    _saved_at: float = field(default_factory=time.monotonic)

    def __call__(self) -> Wish:
        wish: Wish = ""
        if self._asked is not None and ray.wait([self._asked], timeout=0)[0]:
            wish, self._asked = ray.get(self._asked), None
        if self._asked is None:
            self._asked = self.mailbox.wish.remote()
        if not wish and self.checkpoint_s is not None and time.monotonic() - self._saved_at >= self.checkpoint_s:
            return "checkpoint"
        return wish

    def saved(self) -> None:
        """Restart the time until the next checkpoint."""
        self._saved_at = time.monotonic()


def train(config: dict[str, Any]) -> None:
    """Run one worker of Ray Train.

    config: "task", a WorkerTask; "mailbox", a Mailbox's handle; "splits", a reference to the data. An error of the
    user's code is reported to the mailbox before it is raised; the next try of Ray Train then returns at once.
    """
    task, mailbox = config["task"], config["mailbox"]
    rank = ray.train.get_context().get_world_rank()
    if ray.get(mailbox.failed.remote()):
        return  # Ray Train tries again after any error; one of the user's code would come again
    try:
        _train(task, mailbox, ray.get(config["splits"]))
    except BaseException as error:
        if isinstance(error, Exception) and not _is_lost_peer(error):
            ray.get(mailbox.tell.remote(Failed(rank, traceback.format_exc(), is_out_of_memory(error))))
        raise


def _is_lost_peer(error: Exception) -> bool:
    """Return whether an error comes from the loss of another rank, by type or message of either framework."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return bool(kinds & LOST_PEER_ERRORS) or any(sign in str(error) for sign in LOST_PEER)


def _train(task: WorkerTask, mailbox: Any, splits: Splits) -> None:
    os.environ.update(surroundings(task.threads))
    os.chdir(task.source.folder)
    wishes = _Wishes(mailbox, task.checkpoint_s)
    settings = Settings(task.epochs, task.threads, task.precision, Path.cwd())
    ranks = _ranks(task, settings)
    every = _placed(ranks.gather(_devices(task)), len(task.devices))
    devices = every[ranks.rank : ranks.rank + ranks.local]
    parallel = _by_rank(task.parallel, every)
    training = _begin(task, splits, settings, parallel, ranks, wishes)
    keeper = _Keeper(task, ranks, training)
    try:
        keeper.go_on()
        for local, device in enumerate(devices):
            rank, restored = ranks.rank + local, None if ranks.rank + local else keeper.restored
            _tell(mailbox, Joined(rank, device, os.getpid(), training.epoch, tuple(training.notes), restored))
        while (progress := training.advance()) is not None:
            if ranks.rank == 0:
                _tell(mailbox, progress)
            if keeper.due(progress):
                saved = keeper.save(progress)
                wishes.saved()
                if ranks.rank == 0:
                    _tell(mailbox, saved)
            if progress.wish == "stop" or keeper.diverged(progress):
                break
    finally:
        training.close()


def _tell(mailbox: Any, report: Report) -> None:
    mailbox.tell.remote(report)


def _ranks(task: WorkerTask, settings: Settings) -> Any:
    processes = ray.train.get_context().get_world_size()
    if task.source.kind == "keras":
        os.environ.pop("TF_USE_LEGACY_KERAS", None)  # which Ray Train sets, and which tf.keras would heed
        from raygpu.training.distributed.keras_ranks import KerasRanks, num_gpus

        if not task.simulated and (seen := num_gpus()) != task.each:
            raise RuntimeError(f"TensorFlow sees {seen} of {task.each} GPUs here; pip install tensorflow[and-cuda]")
        return KerasRanks(processes, task.each, settings, shared=task.shared)
    if processes == 1:
        return OneRank()
    from raygpu.training.distributed.torch_ranks import TorchRanks

    return TorchRanks()


def _devices(task: WorkerTask) -> list[int | None]:
    """Return the indices of this worker's devices, repeated for a simulated GPU; None for a device that is new."""
    node = ray.get_runtime_context().get_node_id()
    known = {device: place for place, device in enumerate(task.devices)}
    places = [known.get((node, str(gpu))) for gpu in ray.get_gpu_ids()]
    return [places[local % len(places)] for local in range(task.each)]


def _placed(told: Sequence[int | None], count: int) -> list[int]:
    """Return each rank's device index; a device of a node that has joined since takes the index of a lost one."""
    free = (place for place in range(count) if place not in told)
    return [next(free, rank % count) if place is None else place for rank, place in enumerate(told)]


def _by_rank(parallel: ParallelSettings, devices: Sequence[int]) -> ParallelSettings:
    """Return the division of a batch with ratios by rank instead of by device.

    devices: index of each rank's device; ranks that share a device follow each other. Ray numbers workers in any order.
    """
    if not parallel.ratios:
        return parallel
    places = sorted(range(len(devices)), key=lambda rank: (devices[rank], rank))
    ratios = [0.0] * len(devices)
    for ratio, rank in zip(parallel.ratios, places, strict=True):
        ratios[rank] = ratio
    return replace(parallel, ratios=tuple(ratios))


def _begin(
    task: WorkerTask, splits: Splits, settings: Settings, parallel: ParallelSettings, ranks: Any, wishes: _Wishes
) -> ParallelTraining:
    if task.source.kind == "keras":
        from raygpu.training.distributed.keras_ranks import KerasParallel

        with ranks.strategy.scope():  # what the experiment draws random numbers from is each device's own
            keras_code: Any = task.source.resolve()
        return KerasParallel(keras_code, splits, task.trial, settings, parallel, ranks, wish=wishes)
    code: Any = task.source.resolve()
    import torch

    from raygpu.training.distributed.torch_ranks import TorchParallel
    from raygpu.training.torch.solo import TorchSolo

    device = torch.device("cpu")
    if torch.cuda.is_available():
        from ray.train.torch import get_device

        device = get_device()
    solo = TorchSolo(code, splits, task.trial, settings, device, optimizer_settings=parallel.optimizer_settings)
    return TorchParallel(solo, parallel, ranks, wish=wishes)


class _Keeper:
    """Checkpoints of a training under Ray Train, which keeps the last ones and gives a new worker the latest."""

    def __init__(self, task: WorkerTask, ranks: Ranks, training: ParallelTraining) -> None:
        self.task, self.ranks, self.training = task, ranks, training
        self.score: float | None = None
        """Score of the last epoch."""
        self.metrics: Mapping[str, float] = {}
        """Metrics of the last epoch, on rank 0."""
        self.best: Best | None = None
        self.restored: Restored | None = None
        """History before the checkpoint that the training goes on from; None without a checkpoint."""

    def go_on(self) -> None:
        """Restore the latest checkpoint, if there is one; else load a trial's parameters for a warm start."""
        checkpoint = ray.train.get_checkpoint()
        if checkpoint is not None:
            with checkpoint.as_directory() as folder:
                self.training.load(Path(folder))
                kept = json.loads((Path(folder) / PROGRESS).read_text())
                self.score, self.metrics = kept["score"], kept.get("metrics", {})
                if kept["best"] is not None:
                    self.best = Best(kept["best"], kept.get("best_epoch", kept["epoch"]))
                self.restored = Restored(self.training.epoch, self.metrics, self.best)
        elif self.task.warm_start is not None:
            with Storage(self.task.warm_start).fetched() as path:
                self.training.load_parameters(path)

    def due(self, progress: Progress) -> bool:
        """Return whether a checkpoint is due: at the end of some epochs, or on request. The same on all ranks."""
        if progress.result is None or self.diverged(progress):
            return bool(progress.wish) and not self.diverged(progress)
        ended = progress.epoch % self.task.checkpoint_epochs == 0 or progress.epoch == self.task.epochs
        return ended or bool(progress.wish)

    def diverged(self, progress: Progress) -> bool:
        """Return whether the training loss is not finite: unlike validation metrics, it is the same on all ranks."""
        return progress.result is not None and not math.isfinite(progress.result.metrics["train/loss"])

    def save(self, progress: Progress) -> Saved:
        """Save a checkpoint and report it to Ray Train; all ranks call this together."""
        is_best = False
        if progress.result is not None and self.ranks.rank == 0:
            self.metrics = progress.result.metrics
            self.score = self.task.scoring.value(self.metrics)
            is_best = self._is_best(self.score, progress.result.epoch)
        with tempfile.TemporaryDirectory(prefix="raygpu-checkpoint-") as folder:
            self.training.save(Path(folder))
            step = progress.step if progress.result is None else 0
            told = {"epoch": self.training.epoch, "step": step, "score": self.score, "is_best": is_best}
            checkpoint = None
            if self.ranks.rank == 0:
                best = {"best": None} if self.best is None else {"best": self.best.score, "best_epoch": self.best.epoch}
                (Path(folder) / PROGRESS).write_text(json.dumps({**told, **best, "metrics": dict(self.metrics)}))
                checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report(told, checkpoint)
        return Saved(self.training.epoch, step, self.score, is_best)

    def _is_best(self, score: float | None, epoch: int) -> bool:
        if score is None or score == self.task.scoring.worst:
            return False
        sign = 1 if self.task.scoring.maximize else -1
        if self.best is not None and sign * score <= sign * self.best.score:
            return False
        self.best = Best(score, epoch)
        return True


def best_of(checkpoint: Path) -> Best:
    """Read the score and the epoch of a checkpoint that was kept as the best one."""
    kept = json.loads((checkpoint / PROGRESS).read_text())
    return Best(kept["score"], kept["epoch"])
