"""The private API of Ray Tune that raygpu uses does in this release what raygpu needs."""

from __future__ import annotations

import errno
import os
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyarrow.fs import FileSystem, LocalFileSystem, SubTreeFileSystem
from ray import tune
from ray.train._internal import checkpoint_manager, storage
from ray.train._internal.session import _TrainingResult
from ray.tune import registry
from ray.tune.execution import class_cache, experiment_state

from raygpu.devices import disk
from raygpu.engines.tune import tune_private_api
from raygpu.engines.tune.tune_private_api import (
    CREDENTIALS,
    STATE_FILES,
    deletions_after_snapshots,
    in_started_workers,
    snapshots_for_ends,
    trainables_kept,
    whole_snapshots,
    withhold_credentials,
)


def test_tune_copies_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_cache, "ENV_VARS_TO_PROPAGATE", set(class_cache.ENV_VARS_TO_PROPAGATE) | CREDENTIALS)
    for name in CREDENTIALS:
        monkeypatch.setenv(name, "secret")
    wanted = class_cache._ActorClassCache()
    withhold_credentials()

    class Trainable:
        pass

    made = wanted.get(Trainable)
    variables = (made._default_options.get("runtime_env") or {}).get("env_vars", {})
    assert not CREDENTIALS & variables.keys()
    assert "PATH" not in variables


def test_tune_s_trials_begin_in_processes_that_wait_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without variables of their own, which Ray would start a new process for; a cluster's trials keep them."""
    monkeypatch.setenv("RAY_CHDIR_TO_TRIAL_DIR", "0")

    class Trainable:
        pass

    def variables() -> dict[str, str]:
        made = class_cache._ActorClassCache().get(Trainable)
        found: dict[str, str] = (made._default_options.get("runtime_env") or {}).get("env_vars", {})
        return found

    before = variables()
    assert before["RAY_CHDIR_TO_TRIAL_DIR"] == "0"
    with in_started_workers(True):
        assert variables() == {}
    with in_started_workers(False):
        assert variables() == before
    assert variables() == before


def test_a_trainable_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    trainables: Any = registry._Registry("tests")
    monkeypatch.setattr(registry, "_global_registry", trainables)
    monkeypatch.setattr(registry, "_has_rllib_trainable", lambda name: False)
    asked: list[str] = []
    monkeypatch.setattr(registry.pickle, "loads", lambda value: asked.append(value) or object())
    monkeypatch.setattr(registry.pickle, "dumps_debug", lambda value: value)
    trainables.register(registry.TRAINABLE_CLASS, "a", "first")
    with trainables_kept():
        first = registry.get_trainable_cls("a")
        assert registry.get_trainable_cls("a") is first
        assert asked == ["first"]
        trainables.register(registry.TRAINABLE_CLASS, "a", "second")
        assert registry.get_trainable_cls("a") is registry.get_trainable_cls("a") is not first
        assert asked == ["first", "second"]
        with pytest.raises(Exception, match="Unknown trainable: b"):
            registry.validate_trainable("b")
    registry.get_trainable_cls("a")
    assert asked == ["first", "second", "second"], "Tune's own way again"


class Saved(experiment_state._ExperimentCheckpointManager):
    """Counts the snapshots, in a folder of nothing."""

    def __init__(self) -> None:
        storage = SimpleNamespace(
            experiment_driver_staging_path="", experiment_fs_path="",
            syncer=SimpleNamespace(wait=lambda: None, sync_up=lambda *_, **__: True, last_sync_time=0.0),
        )  # fmt: skip
        super().__init__(storage=storage, checkpoint_period=1e9, sync_every_n_trial_checkpoints=1)  # type: ignore[arg-type]
        self.count = 0
        self._last_save_time = time.monotonic()

    def step(self) -> int:
        """As at the end of each step of Tune's controller; the number of snapshots so far."""
        self.sync_up_experiment_state(lambda: vars(self).update(count=self.count + 1))
        return self.count


class Ended:
    """A Tune trial with a checkpoint."""

    def __init__(self, name: str, *, restored: bool = False) -> None:
        self.trial_id = name
        self.last_result = {"training_iteration": 3, "iterations_since_restore": 1 if restored else 3}


def test_first_checkpoints_of_trials_ask_for_a_snapshot_now_and_then_and_later_ones_at_once() -> None:
    before = vars(experiment_state._ExperimentCheckpointManager).copy()
    with snapshots_for_ends(30.0, 0.5):
        manager: Any = Saved()
        for name in ("a", "b", "c"):
            manager.on_trial_checkpoint(Ended(name))
            assert manager.step() == 0
        manager._last_save_time -= 31.0
        assert [manager.step(), manager.step()] == [1, 1]
        for later in (Ended("b"), Ended("d", restored=True)):
            before_it = manager.count
            manager.on_trial_checkpoint(later)
            assert manager.step() == before_it + 1
    manager.on_trial_checkpoint(Ended("e"))
    assert manager.step() == 4, "Tune's own way again"
    assert vars(experiment_state._ExperimentCheckpointManager).copy() == before


def test_snapshots_that_take_long_are_rarer(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = 0.0
    clock = SimpleNamespace(monotonic=lambda: moment)
    for module in (tune_private_api, experiment_state):
        monkeypatch.setattr(module, "time", clock)
    manager: Any = Saved()
    manager._last_save_time = moment

    def save() -> None:
        nonlocal moment
        moment += 2.0

    taken = [moment]
    with snapshots_for_ends(1.0, 0.1):
        for number in range(100):
            moment += 1.0
            manager.on_trial_checkpoint(Ended(str(number)))
            manager.sync_up_experiment_state(save)
            if manager._last_save_time != taken[-1]:
                taken.append(manager._last_save_time)
    assert taken[1] == 3.0
    assert {after - before for before, after in pairwise(taken[1:])} == {20.0}


class Synced(experiment_state._ExperimentCheckpointManager):
    """Saves a number as the state, and copies it to another folder in a process of Tune's own."""

    def __init__(self, staging: Path, target: Path, system: FileSystem | None = None) -> None:
        system = system or LocalFileSystem()
        self.syncer = storage._FilesystemSyncer(system, sync_period=0)
        fields = SimpleNamespace(
            experiment_driver_staging_path=str(staging), experiment_fs_path=str(target), syncer=self.syncer,
            storage_filesystem=system,
        )  # fmt: skip
        super().__init__(storage=fields, checkpoint_period=0)  # type: ignore[arg-type]


def test_a_snapshot_replaces_the_one_before_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staging, target = tmp_path / "staging", tmp_path / "target"
    (staging / "t0000").mkdir(parents=True)
    (staging / "t0000" / "result.json").write_text("{}")
    (staging / "t0001" / "driver_artifacts").mkdir(parents=True)
    names = [name.format("2026") for name in STATE_FILES]
    replaced = list[tuple[str, set[str]]]()
    on_disk = set[int]()
    replace, fsync = Path.replace, os.fsync

    def noted(path: Path, place: Path) -> Path:
        copies = {(path.parent / name).read_text() for name in names if (path.parent / name).exists()}
        replaced.append((place.name, copies))
        assert path.stat().st_ino in on_disk, "a power loss leaves no empty file"
        return replace(path, place)

    monkeypatch.setattr(Path, "replace", noted)
    monkeypatch.setattr(os, "fsync", lambda file: on_disk.add(os.fstat(file).st_ino) or fsync(file))
    with whole_snapshots():
        manager = Synced(staging, target)
        for number in ("one", "two"):
            manager.sync_up_experiment_state(
                lambda number=number: [(staging / name).write_text(number) for name in names], force=True, wait=True
            )
            assert {(target / name).read_text() for name in names} == {number}
    assert [name for name, _ in replaced] == ["result.json", *names] * 2, "Tune's own file is never the newer one"
    assert all(copies <= {"one"} or copies <= {"two"} for _, copies in replaced), "all are copied first"
    assert sorted(path.name for path in target.iterdir()) == sorted([*names, "t0000"]), "no folder without a file"


def test_object_storage_gets_the_files_of_a_snapshot_in_the_same_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging, target = tmp_path / "staging", tmp_path / "target"
    for folder in (staging, target):
        folder.mkdir()
    names = [name.format("2026") for name in STATE_FILES]
    uploaded = list[str]()
    copy = storage._pyarrow_fs_copy_files

    def noted(source: str, place: str, **options: Any) -> None:
        uploaded.append(place)
        copy(source, place, **options)

    monkeypatch.setattr(storage, "_pyarrow_fs_copy_files", noted)
    with whole_snapshots():
        Synced(staging, Path("target"), SubTreeFileSystem(str(tmp_path), LocalFileSystem())).sync_up_experiment_state(
            lambda: [(staging / name).write_text(name) for name in sorted(names)], force=True, wait=True
        )
    assert uploaded == [f"target/{name}" for name in names]
    assert {path.name: path.read_text() for path in target.iterdir()} == {name: name for name in names}


def test_the_state_of_the_run_s_folder_is_restored_and_not_what_lies_here(tmp_path: Path) -> None:
    staging, target = tmp_path / "staging", tmp_path / "target"
    for folder, start in ((staging, "2026"), (target, "0-before")):
        folder.mkdir()
        for name in STATE_FILES:
            (folder / name.format(start)).write_text(start)
    with whole_snapshots():
        Synced(staging, target).sync_down_experiment_state()
    assert sorted(path.name for path in staging.iterdir()) == sorted(name.format("0-before") for name in STATE_FILES)


class Checkpoints:
    """Tune's manager of a trial's checkpoints, of which it keeps the last one, beside a sweep's state."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.staging = folder, folder / "staging"
        self.staging.mkdir()
        self.manager = checkpoint_manager._CheckpointManager(tune.CheckpointConfig(num_to_keep=1))  # type: ignore[arg-type]
        self.synced = Synced(self.staging, folder / "target")

    def register(self, name: str) -> None:
        (self.folder / name).mkdir()
        checkpoint = tune.Checkpoint(str(self.folder / name), LocalFileSystem())
        self.manager.register_checkpoint(_TrainingResult(checkpoint, {}))

    def snapshot(self) -> None:
        self.synced.sync_up_experiment_state(lambda: None, force=True, wait=True)

    def left(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("checkpoint_*"))


def test_a_checkpoint_is_deleted_after_the_snapshot_that_names_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with whole_snapshots(), deletions_after_snapshots():
        checkpoints = Checkpoints(tmp_path)
        for name in ("checkpoint_0", "checkpoint_1"):
            checkpoints.register(name)
        assert checkpoints.left() == ["checkpoint_0", "checkpoint_1"], "the state names the first one"
        checkpoints.snapshot()
        assert checkpoints.left() == ["checkpoint_1"]
        checkpoints.register("checkpoint_2")
        with monkeypatch.context() as broken:
            broken.setattr(tune_private_api, "_replace_files", lambda source, target: (target / "no such").rename("no"))
            checkpoints.snapshot()
        assert checkpoints.left() == ["checkpoint_1", "checkpoint_2"], "the snapshot could not be copied"
        (tmp_path / "checkpoint_1").rmdir()  # by somebody else
        checkpoints.register("checkpoint_3")
        checkpoints.snapshot()
        assert checkpoints.left() == ["checkpoint_3"]
    checkpoints.register("checkpoint_4")
    assert checkpoints.left() == ["checkpoint_4"], "Tune's own way again"


def test_a_checkpoint_on_a_full_disk_is_deleted_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "full", lambda paths: paths[0])
    with whole_snapshots(), deletions_after_snapshots():
        checkpoints = Checkpoints(tmp_path)
        for name in ("checkpoint_0", "checkpoint_1"):
            checkpoints.register(name)
    assert checkpoints.left() == ["checkpoint_1"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_checkpoint_makes_space_for_a_snapshot_that_finds_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A quota is full where the disk has space, so that its deletion waits for the snapshot."""

    def without_space(source: Path, target: Path) -> None:
        raise OSError(code, os.strerror(code))

    with whole_snapshots(), deletions_after_snapshots():
        checkpoints = Checkpoints(tmp_path)
        for name in ("checkpoint_0", "checkpoint_1"):
            checkpoints.register(name)
        with monkeypatch.context() as full:
            full.setattr(tune_private_api, "_replace_files", without_space)
            checkpoints.snapshot()
        assert checkpoints.left() == ["checkpoint_1"]
        checkpoints.snapshot()
        assert checkpoints.left() == ["checkpoint_1"]


def test_tune_s_own_snapshots_are_back_afterwards() -> None:
    of = experiment_state._ExperimentCheckpointManager, storage._FilesystemSyncer
    before = [vars(each).copy() for each in of]
    with whole_snapshots(), deletions_after_snapshots():
        assert [vars(each).copy() for each in of] != before
    assert [vars(each).copy() for each in of] == before
