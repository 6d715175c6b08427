"""The kept checkpoints of a sweep, whose copying and clearing up may be stopped at any moment."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from raygpu.records.run_directory import MEMBERS, RunDirectory
from raygpu.records.trial_checkpoints import keep_checkpoints
from raygpu.storage import Storage, StorageError

FILES = {"model.pt": "the best epoch", "score.json": '{"epoch": 3}'}


@pytest.fixture
def folder(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path, "digits")


def array(folder: RunDirectory, *trial_ids: str, number: int = 1, text: str = "") -> dict[str, str]:
    """Tune's checkpoint of an array; the members' own checkpoints, by trial id."""
    tune = folder.path / "tune" / "a0000_1" / f"checkpoint_{number:06d}"
    for trial_id in trial_ids:
        (tune / MEMBERS / trial_id).mkdir(parents=True)
        for name, content in FILES.items():
            (tune / MEMBERS / trial_id / name).write_text(text or content)
    (tune / "progress.json").write_text("{}")
    return {trial_id: str(tune / MEMBERS / trial_id) for trial_id in trial_ids}


def kept(folder: RunDirectory) -> dict[str, dict[str, str]]:
    return {
        trial.name: {path.name: path.read_text() for path in trial.iterdir()} for trial in folder.checkpoints.iterdir()
    }


@pytest.mark.parametrize("num_before", range(6))
def test_a_stop_while_a_folder_is_deleted_costs_no_checkpoint(
    folder: RunDirectory, num_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """num_before: folders that are deleted before."""
    keep_checkpoints(folder, array(folder, "t0000", "t0001", text="older"), ["t0000", "t0001"], (), complete=False)
    by_trial, left, rmtree = array(folder, "t0000", "t0001", number=2), [num_before], shutil.rmtree

    def stopped(path: Path, **options: Any) -> None:
        if Path(path).is_dir():
            left[0] -= 1
        if left[0] < 0:
            next(Path(path).rglob("model.pt")).unlink()
            raise KeyboardInterrupt
        rmtree(path, **options)

    monkeypatch.setattr(shutil, "rmtree", stopped)
    with suppress(KeyboardInterrupt):
        keep_checkpoints(folder, by_trial, ["t0000", "t0001"], (), complete=True)
    monkeypatch.undo()
    for _ in range(2):
        keep_checkpoints(folder, by_trial, ["t0000", "t0001"], (), complete=True)
        assert kept(folder) == {"t0000": FILES, "t0001": FILES}
    assert not Path(by_trial["t0000"]).exists()


def test_a_stop_while_a_checkpoint_is_copied_leaves_the_earlier_one(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_checkpoints(folder, array(folder, "t0000"), ["t0000"], (), complete=False)
    newer = array(folder, "t0000", number=2, text="newer")

    def half(source: Storage, target: Any) -> None:
        Path(str(target), "model.pt").parent.mkdir(parents=True, exist_ok=True)
        Path(str(target), "model.pt").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(Storage, "download", half)
    with pytest.raises(KeyboardInterrupt):
        keep_checkpoints(folder, newer, ["t0000"], (), complete=True)
    monkeypatch.undo()
    assert kept(folder)["t0000"] == FILES
    keep_checkpoints(folder, newer, ["t0000"], (), complete=True)
    assert kept(folder) == {"t0000": dict.fromkeys(FILES, "newer")}


def test_only_wanted_checkpoints_are_kept(folder: RunDirectory) -> None:
    by_trial = array(folder, "t0000", "t0001")
    keep_checkpoints(folder, by_trial, ["t0000", "t0001"], (), complete=False)
    keep_checkpoints(folder, by_trial, ["t0001"], (), complete=True)
    assert kept(folder) == {"t0001": FILES}
    assert not Path(by_trial["t0001"]).exists()


def test_the_only_checkpoint_of_an_ended_trial_stays_until_the_sweep_is_complete(folder: RunDirectory) -> None:
    """Another trial led for the moment when a later start was interrupted, and fell behind."""
    by_trial = array(folder, "t0000", "t0001")
    keep_checkpoints(folder, by_trial, ["t0000"], ["t0000", "t0001"], complete=True)
    later = by_trial | array(folder, "t0002", number=2)
    keep_checkpoints(folder, later, ["t0002"], ["t0000", "t0001"], complete=False)
    assert set(kept(folder)) == {"t0000", "t0002"}
    keep_checkpoints(folder, later, ["t0000"], ["t0000", "t0001", "t0002"], complete=True)
    assert kept(folder) == {"t0000": FILES}


def test_a_checkpoint_that_may_not_be_deleted_stays_whole(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a bucket without the right to delete, or written by another user: the sweep's results do not depend on
    it."""
    by_trial, discard = array(folder, "t0000"), Storage.discard

    def refused(source: Storage, name: str) -> None:
        if name == "progress.json":
            raise StorageError(f"storage: {source / name}: Permission denied")
        discard(source, name)

    monkeypatch.setattr(Storage, "discard", refused)
    for _ in range(2):
        keep_checkpoints(folder, by_trial, ["t0000"], (), complete=True)
        assert kept(folder) == {"t0000": FILES}
    assert {path.name: path.read_text() for path in Path(by_trial["t0000"]).iterdir()} == FILES


def test_the_checkpoints_of_a_complete_sweep_are_deleted_one_array_at_a_time(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does an earlier checkpoint stay, whose deletion was pending when a command was killed."""
    earlier = array(folder, "t0000", "t0001", "t0002", number=1)
    by_trial = array(folder, "t0000", "t0001", "t0002", number=2)
    tune = Path(by_trial["t0000"]).parent.parent.parent
    (tune / "other").mkdir()
    asked, has = list[str](), Storage.has
    monkeypatch.setattr(Storage, "has", lambda source, name: asked.append(source.uri) or has(source, name))
    keep_checkpoints(folder, by_trial, ["t0001"], (), complete=False)
    assert Path(earlier["t0000"]).is_dir(), "Tune may go on from it"
    asked.clear()
    keep_checkpoints(folder, by_trial, [], (), complete=True)
    assert asked == [str(tune / "checkpoint_000002"), str(tune / "checkpoint_000001")]
    assert [path.name for path in tune.iterdir()] == ["other"]
