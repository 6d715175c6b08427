"""Checkpoints of a production training, written by a thread of Ray Train while the training goes on."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import ray.train
from ray.train import Checkpoint, CheckpointUploadMode

from raygpu.devices import disk
from raygpu.engines.train.rank_group import failures_reported
from raygpu.engines.train.train_private_api import with_retries
from raygpu.records import scratch
from raygpu.training.base import ProductionTraining

COPIES = 3
"""Copies of a checkpoint while it is saved: a local one, the run's last one, and its best one."""


class CheckpointWriter:
    """Writes the checkpoints of one training, one at a time. Every rank has one, and rank 0's writes.

    mailbox: handle of the actor that takes reports of failures.
    """

    def __init__(self, training: ProductionTraining, rank: int, mailbox: Any) -> None:
        self._training, self._rank, self._mailbox = training, rank, mailbox
        self._storage = ray.train.get_context().get_storage()
        self._disks = [Path(tempfile.gettempdir()), *filter(Path.is_dir, [Path(self._storage.storage_fs_path)])]
        self._num_bytes = 0
        """Bytes of the last checkpoint, on rank 0."""
        self._written: Future[None] | None = None
        """The last checkpoint's, on rank 0."""

    def wait(self) -> None:
        """Wait until the last checkpoint is written. Raises what its writing has raised."""
        if self._written is not None:
            self._written.result()

    def begin(self, metrics: Mapping[str, Any], texts: Mapping[str, str], then: Callable[[float], None]) -> None:
        """Begin a checkpoint of this moment, once the one before is written; all ranks call this together.

        metrics: for Ray Train. texts: further files of the checkpoint, by name. then: called in the thread once the
        checkpoint is in the run's folder, with the seconds for which the training has waited. Raises as `wait` does.
        """
        began = time.monotonic()
        self.wait()
        if self._rank:
            self._training.begin_save(scratch.home())
            ray.train.report({**metrics}, checkpoint_upload_mode=CheckpointUploadMode.ASYNC)
            return
        disk.wait(self._disks, COPIES * self._num_bytes)
        folder = Path(tempfile.mkdtemp(prefix="checkpoint-", dir=scratch.home()))
        steps = [self._training.begin_save(folder)]
        self._written = written = Future[None]()
        waited_s = Future[float]()

        def upload(local: Checkpoint, name: str) -> Checkpoint:
            """Write the checkpoint, and copy it into the run's folder, once there is space."""
            if written.done():  # Ray tries again what has failed for good
                written.result()
            try:
                with failures_reported(self._mailbox):
                    persisted = self._write(folder, steps, texts, local, name)
                then(waited_s.result())
            except BaseException as error:
                written.set_exception(error)
                raise
            written.set_result(None)
            return persisted

        try:
            ray.train.report(
                {**metrics},
                Checkpoint.from_directory(folder),
                checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
                delete_local_checkpoint_after_upload=False,
                checkpoint_upload_fn=upload,
            )
        finally:
            waited_s.set_result(time.monotonic() - began)

    def _write(
        self, folder: Path, steps: list[Callable[[], None]], texts: Mapping[str, str], local: Checkpoint, name: str
    ) -> Checkpoint:
        """Write the files and copy them. steps: what writes the state, which is dropped with its memory once done."""
        try:
            disk.patiently(self._disks, steps[0])
            steps.clear()
            for file, text in texts.items():
                (folder / file).write_text(text)
            self._num_bytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            persist = partial(self._storage.persist_current_checkpoint, local, name)
            checkpoint: Checkpoint = disk.patiently(self._disks, lambda: with_retries(persist))
            return checkpoint
        finally:
            shutil.rmtree(folder, ignore_errors=True)
