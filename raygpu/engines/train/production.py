"""Run a production training under Ray Train: place its workers, take their reports, stop it, find its checkpoints."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import ray.train
from ray.exceptions import RayActorError
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from raygpu.devices import disk
from raygpu.engines.cluster import ray_files, ray_private_api
from raygpu.engines.cluster.cluster import Cluster, lost
from raygpu.engines.cluster.node_actors import start_actor
from raygpu.engines.train import run_state
from raygpu.engines.train.best_checkpoint import BestCheckpoint
from raygpu.engines.train.missing_workers import MissingWorkers
from raygpu.engines.train.rank_group import WorkerTask
from raygpu.engines.train.train_private_api import with_own_controller
from raygpu.engines.train.worker import train
from raygpu.engines.train.worker_reports import Failed, Mailbox, Notice, Saved, WorkerReport, last_words
from raygpu.errors import RaygpuError, error_line
from raygpu.experiment import Splits
from raygpu.planning.worker_devices import WorkerDevices
from raygpu.records.interrupts import Interrupts, noted_interrupts
from raygpu.records.run_directory import TRAINING
from raygpu.storage import Storage

POLL_S = 0.2
END_S = 10.0
"""Seconds to wait for the end of a training that was given up."""
MOST_STOPS = 10
"""Largest number of times that a full disk may stop a training between two checkpoints."""
A_DAY_S = 86_400
"""Seconds that a rank waits for another one, as during its evaluation; the death of that rank ends the wait at once."""


STOPPING = Notice("stopping after a checkpoint; Ctrl-C again stops without one")
"""Notice of the first Ctrl-C: the training ends after a checkpoint; a second Ctrl-C ends it without one."""


@dataclass(frozen=True, slots=True)
class TrainingOutcome:
    """Result of a training: its last and best checkpoints, and whether it was interrupted."""

    last: Storage | None
    """Folder of the last checkpoint; None for none."""
    best: Storage | None
    interrupted: bool

    @property
    def kept(self) -> Storage | None:
        """The best checkpoint, or the last one where there is none."""
        return self.best or self.last


class KeepBest(ray.train.UserCallback):
    """Callback in Ray Train's controller that copies its state, and the best checkpoint so far."""

    def __init__(self, checkpoints: Storage) -> None:
        self.checkpoints = checkpoints

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        """Copy the reported checkpoint to the folder of the best one, if rank 0 reports it as the best so far."""
        if checkpoint is None:
            return
        here = self.checkpoints.path
        if here is not None:
            disk.patiently([here], lambda: run_state.back_up(here / TRAINING))
        if metrics[0]["is_best"]:
            replace = BestCheckpoint(self.checkpoints).replace
            disk.patiently([here] if here is not None else [], lambda: replace(checkpoint.path))


@dataclass(frozen=True, slots=True)
class ProductionSetup:
    """Settings of a production run: the training, its data, its placement and its checkpoints."""

    cluster: Cluster
    task: WorkerTask
    splits: Splits | None
    """Data of an experiment; None for a function, which loads its own."""
    placing: WorkerDevices
    folder: Storage
    """Storage of the checkpoints; a training goes on from the last checkpoint in it."""
    keep: int
    """Number of last checkpoints to keep, in addition to the best one."""
    max_failures: int
    """Maximum number of times that lost workers are replaced."""
    work: Callable[[dict[str, Any]], None] = train
    """Function that each worker of Ray Train runs; its argument is that of `worker.train`."""
    mailbox: type[Mailbox] = Mailbox


class ProductionRun:
    """A training under Ray Train, from its start to its end.

    running = ProductionRun(setup)
    with closing(iter(running)) as all_reports:       # whoever leaves it early ends the training
        for reports in all_reports:                   # every POLL_S seconds: the workers' reports since the last
            ...                                       # running.stop() ends it with a checkpoint
    running.ended
    """

    def __init__(self, setup: ProductionSetup) -> None:
        self._setup = setup
        self.ended: TrainingOutcome | None = None
        """Result of the training; None until the iteration is over."""
        self.mailbox = start_actor(setup.mailbox)
        """Handle of the actor that takes the workers' reports."""
        self._stopping = False
        self._path = setup.folder.path
        """Folder of the checkpoints on this machine; None in object storage."""
        self._lacking: Path | None = None
        """Folder whose disk is full; None while there is space."""
        self._stops_by_space = 0
        """Times that a full disk has stopped the training since its last checkpoint."""

    def stop(self) -> None:
        """Ask the workers to end after a checkpoint; returns at once."""
        if not self._stopping:
            self._stopping = True
            self.mailbox.stop.remote()

    def __iter__(self) -> Generator[list[WorkerReport]]:
        """Train until the end, Ctrl-C or `stop`; yield a list of the workers' new reports every POLL_S seconds.

        The list is empty without new reports. Raises TrainingFailed if the training fails for good, KeyboardInterrupt
        without a checkpoint at a second Ctrl-C, or where the signal has ended Ray too.
        """
        logging.getLogger("ray.train").setLevel(logging.ERROR)
        with noted_interrupts() as interrupts:
            while self.ended is None:
                if self._path is not None:
                    run_state.mend(self._path / TRAINING)
                yield from self._attempt(interrupts)
                if self.ended is None:
                    yield from self._wait_for_space(interrupts)

    def _attempt(self, interrupts: Interrupts) -> Iterator[list[WorkerReport]]:
        """Train until the end, or until a full disk stops it, which leaves `ended` as it was."""
        setup, failed, interrupted = self._setup, list[Failed](), False
        trainer = _trainer(setup, self.mailbox)
        fitting, servers, missing = _fitting(trainer), ray_private_api.servers(), MissingWorkers(setup.placing)
        try:
            while not fitting.done():
                with contextlib.suppress(TimeoutError):
                    fitting.exception(POLL_S)
                if interrupts.count:
                    setup.cluster.require_head(settle=not interrupted)
                if (name := lost(servers)) is not None:  # Ray's calls wait for it, and then end this process
                    raise ProcessLost(f"Ray's {name} was ended by others", "")
                reports = self._reports(failed)
                if not interrupted and interrupts.count:
                    interrupted = True
                    reports.append(STOPPING)
                    self.stop()
                if not interrupts.count:  # Ray may end, too, and then keeps its callers for a minute
                    reports += missing.notices(reports)
                yield [*reports, *self._space()]
        finally:
            # A thread that still waits for Ray when Ray is shut down may end this process by a segmentation fault.
            is_lost = lost(servers) is not None or setup.cluster.is_ending()
            if not fitting.done() and not is_lost and trainer.end():
                with contextlib.suppress(TimeoutError):
                    fitting.exception(END_S)
        yield self._reports(failed)
        if failed:
            line = last_words(failed[0], setup.task.source.kind)
            raise TrainingFailed(line, failed[0].error, out_of_memory=failed[0].out_of_memory)
        error = fitting.exception()
        if error is None:
            checkpoint = fitting.result().checkpoint
            last = setup.folder.beside(checkpoint.path) if checkpoint else None
            self.ended = TrainingOutcome(last, BestCheckpoint(setup.folder).kept, interrupted)
        elif isinstance(error, RayActorError):
            raise ProcessLost("Ray Train's controller, which starts the workers, was lost", str(error))
        elif not self._is_by_space(error) or self._stops_by_space >= MOST_STOPS:
            line = f"workers were lost more than {setup.max_failures} times: {error_line(str(error))}"
            raise ProcessLost(line, str(error))

    def _is_by_space(self, error: BaseException) -> bool:
        """Return whether a full disk has stopped the training: Ray may tell of the workers that ended with its own."""
        return disk.is_full(error) or disk.full(ray_files.disks(self._path)) is not None

    def _reports(self, failed: list[Failed]) -> list[WorkerReport]:
        """Take the workers' reports, and add those of failures to `failed`. Raises ProcessLost without the mailbox,
        KeyboardInterrupt if Ray itself ends."""
        try:
            reports: list[WorkerReport] = ray.get(self.mailbox.take.remote())
        except RayActorError as error:
            self._setup.cluster.require_head(settle=True)  # a signal to all processes reaches this one last, or not yet
            raise ProcessLost("the process that takes the workers' reports was lost", str(error)) from error
        failed += [one for one in reports if isinstance(one, Failed)]
        if any(isinstance(one, Saved) for one in reports):
            self._stops_by_space = 0
        return reports

    def _space(self) -> list[WorkerReport]:
        """Return a notice if a disk of this machine has become full, or has space again."""
        before, self._lacking = self._lacking, disk.full(ray_files.disks(self._path))
        if self._lacking == before:
            return []
        return [Notice(disk.NO_SPACE.format(self._lacking) if self._lacking is not None else disk.SPACE_AGAIN)]

    def _wait_for_space(self, interrupts: Interrupts) -> Iterator[list[WorkerReport]]:
        """Wait until the training, which a full disk has stopped, can go on. Raises KeyboardInterrupt after Ctrl-C."""
        self._stops_by_space += 1
        yield self._space()
        while self._lacking is not None:
            time.sleep(POLL_S)
            if interrupts.count:
                raise KeyboardInterrupt
            yield self._space()


def _trainer(setup: ProductionSetup, mailbox: Any) -> Any:
    """Return Ray Train's trainer for a run. mailbox: actor that takes the workers' reports."""
    placing, (path, file_system) = setup.placing, setup.folder.for_ray()
    trainer, options = _trainer_class(setup.task.source.kind, placing.backend, local=setup.cluster.local)
    return with_own_controller(trainer, local=setup.cluster.local)(
        setup.work,
        train_loop_config={
            "task": setup.task,
            "mailbox": mailbox,
            "splits": ray.put(setup.splits),
            "best": BestCheckpoint(setup.folder),
        },
        scaling_config=ray.train.ScalingConfig(
            num_workers=placing.workers,
            use_gpu=True,
            resources_per_worker={"CPU": placing.cpus, "GPU": placing.gpus},
        ),
        run_config=ray.train.RunConfig(
            name=TRAINING,
            storage_path=path,
            storage_filesystem=file_system,
            failure_config=ray.train.FailureConfig(max_failures=setup.max_failures),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=setup.keep),
            callbacks=[KeepBest(setup.folder)],
            logging_config=ray.train.LoggingConfig(log_level="ERROR"),
        ),
        **options,
    )


def _trainer_class(framework: str, backend: str, *, local: bool) -> tuple[type, dict[str, Any]]:
    """Return Ray Train's trainer for a framework, or for a function, and its own arguments.

    backend: torch's. local: whether Ray runs on loopback alone.
    """
    if framework == "torch":
        if local:
            from raygpu.engines.train.loopback import LoopbackConfig

            return DataParallelTrainer, {"backend_config": LoopbackConfig(backend, A_DAY_S)}
        from ray.train.torch import TorchConfig, TorchTrainer

        return TorchTrainer, {"torch_config": TorchConfig(backend=backend, timeout_s=A_DAY_S)}
    if framework == "function":
        return DataParallelTrainer, {}
    from ray.train.tensorflow import TensorflowTrainer

    return TensorflowTrainer, {}


class TrainingFailed(RaygpuError):
    """The training failed for good; `traceback` is that of the worker that failed first."""

    def __init__(self, line: str, traceback: str, *, out_of_memory: bool = False) -> None:
        super().__init__(line)
        self.traceback, self.out_of_memory = traceback, out_of_memory


class ProcessLost(TrainingFailed):
    """A process was lost without which the training does not go on; another start goes on after its checkpoint."""


def _fitting(trainer: Any) -> Future[Any]:
    """Run Ray Train's `fit` in a thread: in the main one it would take Ctrl-C, and end without a checkpoint.

    The thread is a daemon: if Ray is shut down meanwhile, `fit` never returns, and the process must end all the same.
    """
    fitting: Future[Any] = Future()

    def fit() -> None:
        """Run `fit`, and store its result or error in the future."""
        try:
            fitting.set_result(trainer.fit())
        except BaseException as error:  # noqa: BLE001 - whoever waits for it is told
            fitting.set_exception(error)

    threading.Thread(target=fit, name="ray-train", daemon=True).start()
    return fitting
