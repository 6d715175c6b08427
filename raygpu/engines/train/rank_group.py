"""The ranks of a Ray Train job: which devices each worker has, its share of a batch, and its part of a training."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
import ray.train

from raygpu.config.sections import Precision
from raygpu.config.source import Source
from raygpu.devices import disk
from raygpu.engines.train.worker_reports import Failed, Joined, WorkerReport
from raygpu.experiment import Splits
from raygpu.records.training_progress import ControlRequest, Restored
from raygpu.search.scoring import Scoring
from raygpu.search.trials import Trial
from raygpu.training.base import ProductionTraining, Settings, thread_environment
from raygpu.training.callable.function import FunctionTraining
from raygpu.training.distributed.function_rank import FunctionRank
from raygpu.training.distributed.parallel_training import ParallelTraining
from raygpu.training.distributed.ranks import OneRank, ParallelSettings
from raygpu.training.out_of_memory import is_out_of_memory

LOST_PEER_ERRORS = {"DistError", "UnavailableError", "AbortedError"}
"""Types of errors that a rank raises because another rank is lost, by name: of torch.distributed, and of TensorFlow."""
LOST_PEER = re.compile(r"\b(gloo|NCCL|ProcessGroup\w*|Connection (closed|reset) by peer|Collective ops)\b")
"""Words in the messages of other such errors."""
MAY_BE_LOST_PEER = {"RuntimeError", "ConnectionError", "OpError"}
"""Types of these, by name: torch's, Python's and TensorFlow's. A user's own error may name a path with such a word."""


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """Settings of a training for every worker, sent through Ray's object store."""

    source: Source
    trial: Trial
    epochs: int
    precision: Precision
    threads: int
    parallel: ParallelSettings | None
    """Division of a batch, with ratios in the order of `devices`; None for a function, which makes its own batches."""
    devices: tuple[tuple[str, str], ...]
    """Node id and Ray's name of each device, in the order of their indices."""
    scoring: Scoring
    checkpoint_epochs: int
    checkpoint_s: float | None
    shared: bool
    """Whether workers share a GPU, or the GPU is simulated."""
    simulated: bool
    """Whether the GPU is simulated."""
    devices_per_worker: int = 1
    """Number of devices of a worker."""
    warm_start: str | None = None
    """URI of a trial's checkpoint, whose parameters the training begins with; None for fresh parameters."""
    run: str = ""
    """Name of the training."""
    folds: int | None = None
    """Number of folds of the sweep of a function that is trained again; None without folds."""


@dataclass(slots=True)
class LastAnswer:
    """A question to the mailbox that is asked again and again; never waits for an answer."""

    ask: Callable[[], Any]
    """Function that asks, and returns Ray's reference to the answer."""
    _asked: Any = None

    def __call__(self) -> ControlRequest:
        """Return the answer to the question of an earlier call, if it has come since; else an empty request."""
        request: ControlRequest = ""
        if self._asked is not None and ray.wait([self._asked], timeout=0)[0]:
            request, self._asked = ray.get(self._asked), None
        if self._asked is None:
            self._asked = self.ask()
        return request


class RankGroup:
    """All ranks of a Ray Train job, seen from one worker. Made once in a process, before anything uses the device."""

    def __init__(self, task: WorkerTask, mailbox: Any) -> None:
        """Join the group; waits for the other workers. mailbox: handle of the actor that takes reports."""
        os.environ.update(thread_environment(task.threads))
        os.chdir(task.source.folder)
        self._task, self.mailbox = task, mailbox
        self._settings = Settings(task.epochs, task.threads, task.precision, Path.cwd(), folds=task.folds)
        self.ranks = _ranks(task, self._settings)
        self._devices = _placed(self.ranks.gather(_devices(task)), len(task.devices))
        """Index of each rank's device."""

    def begin(
        self, splits: Splits, parallel: ParallelSettings, request: Callable[[], ControlRequest]
    ) -> ParallelTraining:
        """Make a training of the task's trial; all workers call this together.

        parallel: its ratios are in the order of `WorkerTask.devices`. request: called on rank 0 before each exchange.
        """
        task, settings, ranks = self._task, self._settings, self.ranks
        parallel = _by_rank(parallel, self._devices)
        if task.source.kind == "keras":
            from raygpu.training.distributed.keras_ranks import KerasParallel

            with ranks.strategy.scope():  # what the experiment draws random numbers from is each device's own
                keras_code: Any = task.source.resolve()
            return KerasParallel(keras_code, splits, task.trial, settings, parallel, ranks, request=request)
        code: Any = task.source.resolve()
        import torch

        from raygpu.training.distributed.torch_ranks import TorchParallel
        from raygpu.training.torch.solo import TorchSolo

        device = torch.device("cpu")
        if torch.cuda.is_available():
            from ray.train.torch import get_device

            device = get_device()
        chosen = parallel.optimizer_settings
        if parallel.sharded:
            from raygpu.training.distributed.torch_sharded import TorchSharded, UnplacedSolo

            unplaced = UnplacedSolo(code, splits, task.trial, settings, device, optimizer_settings=chosen)
            return TorchSharded(unplaced, parallel, ranks, request=request)
        solo = TorchSolo(code, splits, task.trial, settings, device, optimizer_settings=chosen)
        return TorchParallel(solo, parallel, ranks, request=request)

    def begin_function(self, request: Callable[[], ControlRequest]) -> FunctionRank:
        """Make a training of the task's trial by the user's function. request: called at each of its reports."""
        task = self._task
        code: Any = task.source.resolve()
        return FunctionRank(FunctionTraining(code, task.trial, self._settings), task.scoring, request)

    def report_start(self, training: ProductionTraining, restored: Restored | None = None) -> None:
        """Report each device of this worker as joined. restored: history before the checkpoint that was loaded."""
        for rank in range(self.ranks.rank, self.ranks.rank + self.ranks.local):
            notes, history = tuple(training.notes), None if rank else restored
            self.report(Joined(rank, self._devices[rank], os.getpid(), training.epoch, notes, history))

    def report(self, report: WorkerReport) -> None:
        """Send a report to the driver, without waiting."""
        self.mailbox.tell.remote(report)


@contextmanager
def failures_reported(mailbox: Any) -> Iterator[None]:
    """Report an error of the user's code to the mailbox before it is raised, `sys.exit` and KeyboardInterrupt too; not
    an error that a lost rank or a full disk has caused."""
    try:
        yield
    except BaseException as error:
        if not _is_lost_peer(error) and not disk.is_full(error):
            rank = ray.train.get_context().get_world_rank()
            ray.get(mailbox.tell.remote(Failed(rank, traceback.format_exc(), is_out_of_memory(error))))
        raise


def _is_lost_peer(error: BaseException) -> bool:
    """Return whether an error comes from the loss of another rank, by type or message of either framework.

    Errors that it was raised from are looked at too: the user's code may raise one of its own type instead.
    """
    if ray.train.get_context().get_world_size() == 1:
        return False  # a function may use these libraries by itself
    return any(_tells_lost_peer(each) for each in _chain(error))


def _chain(error: BaseException) -> list[BaseException]:
    """Return an error, the one that it was raised from or while handling, and so on."""
    chain: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and not any(each is earlier for earlier in chain):
        chain.append(each)
        each = each.__cause__ if each.__cause__ is not None else each.__context__
    return chain


def _tells_lost_peer(error: BaseException) -> bool:
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds & LOST_PEER_ERRORS:
        return True
    return bool(kinds & MAY_BE_LOST_PEER) and LOST_PEER.search(str(error)) is not None


def _ranks(task: WorkerTask, settings: Settings) -> Any:
    processes = ray.train.get_context().get_world_size()
    if task.source.kind == "keras":
        os.environ.pop("TF_USE_LEGACY_KERAS", None)  # which Ray Train sets, and which tf.keras would heed
        from raygpu.training.distributed.keras_devices import KerasRanks, num_gpus

        if not task.simulated and (seen := num_gpus()) != task.devices_per_worker:
            raise RuntimeError(
                f"TensorFlow sees {seen} of {task.devices_per_worker} GPUs here; pip install tensorflow[and-cuda]"
            )
        return KerasRanks(processes, task.devices_per_worker, settings, shared=task.shared)
    if processes == 1:
        return OneRank()
    from raygpu.training.distributed.torch_ranks import TorchRanks

    return TorchRanks()


def _devices(task: WorkerTask) -> list[int | None]:
    """Return the indices of this worker's devices, repeated for a simulated GPU; None for a device that is new."""
    node = ray.get_runtime_context().get_node_id()
    place_by_device = {device: place for place, device in enumerate(task.devices)}
    places = [place_by_device.get((node, str(gpu))) for gpu in ray.get_gpu_ids()]
    return [places[local % len(places)] for local in range(task.devices_per_worker)]


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
