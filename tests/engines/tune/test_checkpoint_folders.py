"""Where a worker writes checkpoints, by Ray's own storage context, trainable and checkpoint manager."""

from __future__ import annotations

import copy
import errno
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.train._internal.checkpoint_manager import _CheckpointManager
from ray.train._internal.storage import StorageContext

from raygpu.devices import disk
from raygpu.engines.tune.checkpoint_folders import CheckpointFolders
from raygpu.engines.tune.trainable import ArrayTrainable
from raygpu.storage import Storage


class Saves(tune.Trainable):
    """Saves the same files at each checkpoint."""

    files: tuple[str, ...] = ("progress.json",)

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        for name in self.files:
            (Path(checkpoint_dir) / name).write_text(name)


class Tune:
    """Tune's driver: it counts the checkpoints that it is told of, and keeps the last one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.context = StorageContext(str(folder), "tune", trial_dir_name="t0000_a")
        self.manager = _CheckpointManager(tune.CheckpointConfig(num_to_keep=1))  # type: ignore[arg-type]
        self.trial = folder / "tune" / "t0000_a"

    def worker(self, *files: str) -> Worker:
        """A new worker, which goes on from the last checkpoint."""
        return Worker(self, files or Saves.files)

    def register(self, result: Any) -> None:
        self.manager.register_checkpoint(result)
        self.context._update_checkpoint_index({})

    @property
    def last(self) -> Path:
        result = self.manager.latest_checkpoint_result
        assert result is not None
        return Path(result.checkpoint.path)


class Worker:
    """A worker that saves checkpoints as an `ArrayTrainable` does."""

    def __init__(self, driver: Tune, files: tuple[str, ...]) -> None:
        self.context = copy.copy(driver.context)
        self.trainable = Saves(storage=self.context)
        self.trainable.files = files
        self.folders = CheckpointFolders(Storage(str(driver.folder)), self.context)
        if driver.manager.latest_checkpoint_result is not None:
            self.folders.restores(driver.manager.latest_checkpoint_result.checkpoint)

    def save(self) -> Any:
        return self.folders.save(self.trainable.save)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tune:
    monkeypatch.setattr(StorageContext, "trial_working_directory", str(tmp_path / "working"))  # Ray's, if it runs
    monkeypatch.setattr(disk, "POLL_S", 0.0)
    monkeypatch.setattr(disk, "full", lambda *_: None)
    return Tune(tmp_path)


def full_at(monkeypatch: pytest.MonkeyPatch, *numbers: int) -> None:
    """The disk is full for the checkpoints of these numbers, after half of each is copied."""
    persist = StorageContext.persist_current_checkpoint

    def half(context: StorageContext, checkpoint: Any) -> Any:
        if context.current_checkpoint_index not in numbers:
            return persist(context, checkpoint)
        Path(context.checkpoint_fs_path).mkdir()
        Path(context.checkpoint_fs_path, "half").touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(StorageContext, "persist_current_checkpoint", half)


def test_a_checkpoint_after_a_full_disk_and_a_lost_worker_is_not_deleted(
    driver: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tune deletes the one before for it; with Tune's own numbers, both would be the same folder."""
    full_at(monkeypatch, 1, 2)
    worker = driver.worker()
    for _ in range(2):
        driver.register(worker.save())
    assert [path.name for path in driver.trial.iterdir()] == [driver.last.name], "no half of one is left"
    for _ in range(3):
        driver.register(driver.worker().save())
        assert [path.name for path in driver.trial.iterdir()] == [driver.last.name]
        assert (driver.last / "progress.json").is_file()


@pytest.mark.parametrize("known", [True, False])
def test_a_checkpoint_has_no_file_of_one_that_was_lost_with_its_worker(driver: Tune, *, known: bool) -> None:
    if known:
        driver.register(driver.worker().save())
    driver.worker("progress.json", "reports.json").save()  # lost before Tune knows of it
    abandoned = next(path.parent for path in driver.trial.glob("*/reports.json"))
    result = driver.worker().save()
    assert not abandoned.exists()
    assert not known or (driver.last / "progress.json").is_file(), "until Tune knows of the new one"
    driver.register(result)
    assert [path.name for path in driver.trial.rglob("*.json")] == ["progress.json"]


def test_a_checkpoint_that_fails_for_another_reason_is_not_tried_again(
    driver: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(context: StorageContext, checkpoint: Any) -> Any:
        Path(context.checkpoint_fs_path).mkdir()
        raise PermissionError(errno.EACCES, "Permission denied")

    driver.register(driver.worker().save())
    monkeypatch.setattr(StorageContext, "persist_current_checkpoint", refused)
    with pytest.raises(PermissionError):
        driver.worker().save()
    assert [path.name for path in driver.trial.iterdir()] == [driver.last.name]


def test_other_folders_of_the_trial_stay(driver: Tune) -> None:
    (driver.trial / "zoo").mkdir(parents=True)
    driver.register(driver.worker().save())
    assert sorted(path.name for path in driver.trial.iterdir()) == ["checkpoint_000000", "zoo"]


def test_an_array_s_worker_saves_so_and_keeps_what_it_restores(driver: Tune, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ArrayTrainable, "save_checkpoint", Saves.save_checkpoint)
    monkeypatch.setattr(ArrayTrainable, "load_checkpoint", lambda self, folder: None)
    first = driver.worker().save()
    driver.register(first)
    abandoned, worker = driver.worker().save(), object.__new__(ArrayTrainable)
    vars(worker).update(files=Saves.files, _storage=driver.context, _last_result={}, _saving_s=0.0, _local_ip="")
    worker.checkpoints = CheckpointFolders(Storage(str(driver.folder)), driver.context)
    worker.restore(first)
    saved = worker.save()
    assert not Path(abandoned.checkpoint.path).exists()
    assert Path(first.checkpoint.path).is_dir()
    assert Path(saved.checkpoint.path, "progress.json").is_file()
