"""Worker of a production training under Ray Train: it trains, saves checkpoints, and reports to the driver.

Ray Train calls `train` on every worker, and again on new workers after one was lost, from the last checkpoint on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
import ray.train

from raygpu.devices import disk
from raygpu.engines.train.best_checkpoint import BestCheckpoint, forgotten_line, lost_line
from raygpu.engines.train.checkpoint_writer import CheckpointWriter
from raygpu.engines.train.rank_group import LastAnswer, RankGroup, WorkerTask, failures_reported
from raygpu.engines.train.train_private_api import upload_in_daemon_threads
from raygpu.engines.train.worker_reports import Notice, Saved
from raygpu.experiment import Splits
from raygpu.records import activity
from raygpu.records.activity import Activity
from raygpu.records.run_directory import PROGRESS
from raygpu.records.scratch import fetched
from raygpu.records.training_progress import Best, ControlRequest, Progress, Restored
from raygpu.storage import Storage
from raygpu.training.base import ProductionTraining

NOTE_S = 1.0
KEPT_EPOCHS = 100
"""Number of epochs whose metrics a checkpoint has, for a command that was killed before it had heard of them."""


@dataclass(slots=True)
class _Requests:
    """Requests of rank 0 to all ranks: the user's stop, and checkpoints by time. Never waits for the mailbox."""

    asked: Callable[[], ControlRequest]
    """Function that returns the user's request, if there is one."""
    checkpoint_s: float | None
    _saved_at: float = field(default_factory=time.monotonic)

    def __call__(self) -> ControlRequest:
        request = self.asked()
        if not request and self.checkpoint_s is not None and time.monotonic() - self._saved_at >= self.checkpoint_s:
            return "checkpoint"
        return request

    def saved(self) -> None:
        """Restart the time until the next checkpoint."""
        self._saved_at = time.monotonic()


def train(config: dict[str, Any]) -> None:
    """Run one worker of Ray Train.

    config: "task", a WorkerTask; "mailbox", a Mailbox's handle; "splits", a reference to the data; "best", a
    BestCheckpoint. An error of the user's code is reported to the mailbox before it is raised; the next try of Ray
    Train then returns at once.
    """
    upload_in_daemon_threads()
    mailbox = config["mailbox"]
    if ray.get(mailbox.failed.remote()):
        return  # Ray Train tries again after any error; one of the user's code would come again
    with failures_reported(mailbox):
        _train(config["task"], mailbox, ray.get(config["splits"]), config["best"])


def _train(task: WorkerTask, mailbox: Any, splits: Splits | None, best: BestCheckpoint) -> None:
    group, requests = RankGroup(task, mailbox), _Requests(_asking(task, mailbox), task.checkpoint_s)
    training = _begun(group, task, splits, requests)
    manager = _CheckpointManager(task, group, training)
    try:
        manager.go_on(best)
        group.report_start(training, manager.restored)
        if manager.restored is None or not manager.restored.ended:
            _train_to_the_end(group, manager, requests)
            manager.writer.wait()
    except Exception:
        with suppress(Exception):  # what is written is not lost with this process
            manager.writer.wait()
        raise
    finally:
        activity.note(None)
        training.close()


def _asking(task: WorkerTask, mailbox: Any) -> Callable[[], ControlRequest]:
    """Return the function that asks for the user's request: a function may report too rarely for earlier answers."""
    if task.source.kind == "function":
        return lambda: ray.get(mailbox.request.remote())
    return LastAnswer(mailbox.request.remote)


def _begun(group: RankGroup, task: WorkerTask, splits: Splits | None, requests: _Requests) -> ProductionTraining:
    if task.source.kind == "function":
        return group.begin_function(requests)
    assert splits is not None, "an experiment has data"
    assert task.parallel is not None, "an experiment has batches"
    return group.begin(splits, task.parallel, requests)


def _train_to_the_end(group: RankGroup, manager: _CheckpointManager, requests: _Requests) -> None:
    """Train until the end, a stop or divergence, with a checkpoint whenever one is due."""
    last: Progress | None = None
    noted_s, num_told = 0.0, len(manager.training.notes)
    while True:
        progress = manager.training.advance()
        if group.ranks.rank == 0:
            for line in manager.training.notes[num_told:]:
                group.report(Notice(line, once=True))
            num_told = len(manager.training.notes)
        if progress is None:
            break
        last = progress
        manager.note(progress)
        noted_s = _note_activity(manager.task, progress, group.ranks.rank, noted_s)
        if group.ranks.rank == 0:
            group.report(progress)
        if manager.due(progress):
            manager.save(progress)
            requests.saved()
        if progress.request == "stop" or progress.diverged:
            return
    if last is not None and last.epoch < manager.task.epochs:
        manager.save(last, ended=True)


def _note_activity(task: WorkerTask, progress: Progress, rank: int, noted_s: float) -> float:
    """Note for `raygpu gpus` what this worker trains, at most once in NOTE_S seconds; return the time of the note."""
    now = time.monotonic()
    if now - noted_s < NOTE_S:
        return noted_s
    rate = progress.rates[rank] if rank < len(progress.rates) else None
    activity.note(Activity(task.run, (task.trial.trial_id,), samples_per_s=rate))
    return now


class _CheckpointManager:
    """Checkpoints of a training under Ray Train, which keeps the last ones and gives a new worker the latest."""

    def __init__(self, task: WorkerTask, group: RankGroup, training: ProductionTraining) -> None:
        self.task, self.training, self._group = task, training, group
        self.writer = CheckpointWriter(training, group.ranks.rank, group.mailbox)
        self.score: float | None = None
        """Score of the last epoch."""
        self.metrics: dict[int, Mapping[str, float]] = {}
        """Metrics of the last epochs, by epoch, on rank 0."""
        self.best: Best | None = None
        self.restored: Restored | None = None
        """History before the checkpoint that the training goes on from; None without a checkpoint."""

    def go_on(self, best: BestCheckpoint) -> None:
        """Restore the latest checkpoint, if there is one; else load a trial's parameters for a warm start."""
        checkpoint = ray.train.get_checkpoint()
        if checkpoint is not None:
            with checkpoint.as_directory() as folder:
                self.training.load(Path(folder))
                progress = json.loads((Path(folder) / PROGRESS).read_text())
            self._restore(progress, best, checkpoint.path)
        elif self.task.warm_start is not None:
            with fetched(Storage(self.task.warm_start)) as path:
                self.training.load_parameters(path)

    def _restore(self, progress: Mapping[str, Any], best: BestCheckpoint, path: str) -> None:
        """Take in the history before a checkpoint. path: of the checkpoint.

        A function goes on from its own state, of an earlier epoch or of none: the epochs after it do not count.
        """
        ended = progress.get("ended", False) or progress["epoch"] >= self.task.epochs
        epoch = progress["epoch"] if ended else self.training.epoch
        known = {int(number): metrics for number, metrics in progress["metrics"].items()}
        self.metrics = {number: metrics for number, metrics in known.items() if number <= epoch}
        if epoch in self.metrics:
            self.score = self.task.scoring.value(self.metrics[epoch])
        if progress["best"] is not None:
            noted = Best(progress["best"], progress["best_epoch"])
            if noted.epoch > epoch:
                best.forget()
                self.training.notes.append(forgotten_line(noted, epoch))
            else:
                self.best = noted
                self._recover(best, path if progress.get("is_best") else None)
        earlier = dict(self.metrics)
        self.restored = Restored(epoch, earlier.pop(epoch, {}), self.best, ended, earlier)

    def _recover(self, best: BestCheckpoint, uncopied: str | None) -> None:
        """Make sure that the best score is one whose checkpoint is kept.

        uncopied: path of the restored checkpoint if it was reported as the best one; its copy may be missing.
        """
        if self.best is None or self._group.ranks.rank != 0:
            return
        noted, maximize, here = self.best, self.task.scoring.maximize, best.checkpoints.path
        disks = [here] if here is not None else []
        self.best = disk.patiently(disks, lambda: best.recovered(noted, uncopied, maximize=maximize))
        sign = 1 if maximize else -1
        if self.best is None or sign * self.best.score < sign * noted.score:
            self.training.notes.append(lost_line(noted, self.best))

    def note(self, progress: Progress) -> None:
        """Take in the metrics of an epoch that has ended, whether a checkpoint follows it or one within the next."""
        if progress.result is not None and self._group.ranks.rank == 0:
            self.metrics[progress.epoch] = progress.result.metrics
            self.metrics.pop(progress.epoch - KEPT_EPOCHS, None)
            self.score = self.task.scoring.value(progress.result.metrics)

    def due(self, progress: Progress) -> bool:
        """Return whether a checkpoint is due: at the end of some epochs, or on request. The same on all ranks."""
        if progress.result is None or progress.diverged:
            return bool(progress.request) and not progress.diverged
        ended = progress.epoch % self.task.checkpoint_epochs == 0 or progress.epoch == self.task.epochs
        return ended or bool(progress.request)

    def save(self, progress: Progress, *, ended: bool = False) -> None:
        """Begin to save a checkpoint, which a thread writes; all ranks call this together.

        ended: whether the training has ended by itself, before its last epoch. Raises what the writing of the one
        before has raised.
        """
        epoch, score = self.training.epoch, self.score
        is_best = progress.result is not None and self._group.ranks.rank == 0 and self._is_best(score, epoch)
        step = progress.step if progress.result is None else 0
        entry = {"epoch": epoch, "step": step, "score": score, "is_best": is_best, **({"ended": True} if ended else {})}
        best = {"best": None} if self.best is None else {"best": self.best.score, "best_epoch": self.best.epoch}
        metrics = {number: dict(values) for number, values in self.metrics.items()}
        text = json.dumps({**entry, **best, "metrics": metrics})

        def report(waited_s: float) -> None:
            """Report to the driver that the checkpoint is written."""
            self._group.report(Saved(epoch, step, score, is_best, ended, waited_s))

        self.writer.begin(entry, {PROGRESS: text}, report)

    def _is_best(self, score: float | None, epoch: int) -> bool:
        if score is None or score == self.task.scoring.worst:
            return False
        sign = 1 if self.task.scoring.maximize else -1
        if self.best is not None and sign * score <= sign * self.best.score:
            return False
        self.best = Best(score, epoch)
        return True
