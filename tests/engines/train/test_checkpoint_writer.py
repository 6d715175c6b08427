"""Checkpoints are written while the training goes on, one at a time; a Ray Train of this process' own threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import ray.train
from ray._common import retry

from raygpu.engines.train.checkpoint_writer import CheckpointWriter
from raygpu.engines.train.worker_reports import Failed
from raygpu.records import scratch


class Counting:
    """A training whose state is the number of its step; writing waits until it may go on."""

    def __init__(self) -> None:
        self.step = 0
        self.may_write = threading.Event()

    def begin_save(self, folder: Path) -> Callable[[], None]:
        step = self.step

        def write() -> None:
            self.may_write.wait(30)
            if step < 0:
                raise TypeError("this state cannot be written")
            (folder / "step").write_text(str(step))

        return write


class TrainInThreads:
    """What the writer uses of Ray Train: a report whose upload a thread makes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kept: list[dict[str, str]] = []
        self.faults: list[str] = []
        self.threads = ThreadPoolExecutor(1)

    def report(self, metrics: dict[str, Any], checkpoint: Any = None, **options: Any) -> None:
        if checkpoint is not None:
            self.threads.submit(options["checkpoint_upload_fn"], checkpoint, f"checkpoint_{metrics['epoch']}")

    def persist_current_checkpoint(self, checkpoint: Any, name: str) -> Any:
        if self.faults:
            raise OSError(self.faults.pop(0))
        self.kept.append({file.name: file.read_text() for file in Path(checkpoint.path).iterdir()})
        return checkpoint


@pytest.fixture
def in_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TrainInThreads]:
    found = TrainInThreads(tmp_path)
    storage = SimpleNamespace(
        storage_fs_path=str(tmp_path), persist_current_checkpoint=found.persist_current_checkpoint
    )
    context = SimpleNamespace(get_storage=lambda: storage, get_world_rank=lambda: 0, get_world_size=lambda: 1)
    monkeypatch.setattr(ray.train, "get_context", lambda: context)
    monkeypatch.setattr(ray.train, "report", found.report)
    monkeypatch.setattr(ray, "get", lambda told: told)
    yield found
    found.threads.shutdown()


def left() -> list[Path]:
    return list(scratch.home().glob("checkpoint-*"))


def test_the_training_goes_on_while_its_state_of_that_moment_is_written(in_threads: TrainInThreads) -> None:
    training, waited = Counting(), list[float]()
    writer = CheckpointWriter(training, 0, None)  # type: ignore[arg-type]
    training.step = 1
    writer.begin({"epoch": 1}, {"progress.json": "one"}, waited.append)
    training.step = 2
    assert in_threads.kept == []
    later = threading.Thread(target=writer.begin, args=({"epoch": 2}, {"progress.json": "two"}, waited.append))
    later.start()
    later.join(0.1)
    assert later.is_alive()  # waits for the first one
    training.may_write.set()
    later.join(30)
    writer.wait()
    assert in_threads.kept == [{"step": "1", "progress.json": "one"}, {"step": "2", "progress.json": "two"}]
    assert len(waited) == 2
    assert waited[0] < waited[1]
    assert left() == []


def test_a_state_that_cannot_be_written_ends_the_training(in_threads: TrainInThreads) -> None:
    training, told = Counting(), list[Any]()
    training.step = -1
    training.may_write.set()
    mailbox = SimpleNamespace(tell=SimpleNamespace(remote=told.append))
    writer = CheckpointWriter(training, 0, mailbox)  # type: ignore[arg-type]
    writer.begin({"epoch": 1}, {}, told.append)
    with pytest.raises(TypeError, match="cannot be written"):
        writer.begin({"epoch": 2}, {}, told.append)
    (failed,) = told
    assert isinstance(failed, Failed)
    assert "this state cannot be written" in failed.error
    assert in_threads.kept == left() == []


def test_an_error_of_the_storage_that_passes_is_tried_again(
    in_threads: TrainInThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(in_threads, "faults", ["AWS Error SLOW_DOWN", "AWS Error NETWORK_CONNECTION"])
    training, waited = Counting(), list[float]()
    training.may_write.set()
    writer = CheckpointWriter(training, 0, None)  # type: ignore[arg-type]
    writer.begin({"epoch": 1}, {}, waited.append)
    writer.wait()
    assert in_threads.kept == [{"step": "0"}]
    assert len(waited) == 1


def test_the_other_ranks_write_nothing(in_threads: TrainInThreads) -> None:
    writer = CheckpointWriter(Counting(), 1, None)  # type: ignore[arg-type]
    writer.begin({"epoch": 1}, {}, lambda waited_s: pytest.fail("rank 1 has written a checkpoint"))
    writer.wait()
    assert in_threads.kept == []
