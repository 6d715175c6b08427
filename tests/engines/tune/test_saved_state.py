"""What Tune keeps for a resume: damaged or foreign state is refused, and never taken for an empty sweep."""

from __future__ import annotations

import io
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from raygpu import sweep
from raygpu.cli.sweep_view import SweepConsole
from raygpu.config import SweepConfig
from raygpu.engines.tune import saved_state
from raygpu.engines.tune.callback import ArrayCallback
from raygpu.errors import BadInput
from raygpu.records.run_directory import RunDirectory
from raygpu.storage import Storage
from tests.power_loss import Disk

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def ended(ray_address: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep that has ended."""
    config = SweepConfig.model_validate(
        {
            "name": "ended",
            "experiment": "tests.cases:ramp",
            "metric": "score",
            "trials": 2,
            "runs_dir": str(tmp_path_factory.mktemp("runs")),
            "gpu": {"fraction": 1.0},
            "tracking": {"enabled": False},
            "cluster": {"address": ray_address},
            "space": {"x": 1, "epochs": 2},
        }
    )
    result = sweep.run(config, console=SweepConsole(stream=io.StringIO()))
    assert result.folder is not None
    return result.folder


@pytest.fixture
def folder(ended: Path, tmp_path: Path) -> RunDirectory:
    """A copy of it."""
    shutil.copytree(ended, tmp_path / "ended")
    return RunDirectory(tmp_path / "ended")


def newest(folder: RunDirectory, pattern: str) -> Path:
    return max((folder.path / "tune").glob(pattern))


def test_whole_state_is_taken(folder: RunDirectory) -> None:
    assert saved_state.has_state(folder, print)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("damage", [cut, emptied, zeroed])
@pytest.mark.parametrize(
    "pattern",
    ["experiment_state-*.json", "search_gen_state-*.json", "searcher-state-*.pkl", "callback-*.pkl", "tuner.pkl"],
)
def test_damaged_state_is_refused(folder: RunDirectory, pattern: str, damage: Any) -> None:
    file = newest(folder, pattern)
    damage(file)
    with pytest.raises(BadInput) as fault:
        saved_state.has_state(folder, print)
    assert str(fault.value).startswith(f"resume: {file} is damaged (")
    assert "begin a new sweep; what has finished is in MLflow" in str(fault.value)
    assert len(str(fault.value).splitlines()) == 1


def test_the_state_of_the_start_before_is_named(folder: RunDirectory) -> None:
    file = newest(folder, "experiment_state-*.json")
    later = file.with_name("experiment_state-2099-01-01_00-00-00.json")
    later.write_text("{")
    with pytest.raises(
        BadInput, match="move the files of 2099-01-01_00-00-00 away to go on from the state of the start"
    ):
        saved_state.has_state(folder, print)
    later.unlink()
    assert saved_state.has_state(folder, print)


@pytest.mark.parametrize("pattern", ["experiment_state-*.json", "tuner.pkl", "searcher-state-*.pkl"])
def test_lost_state_is_refused(folder: RunDirectory, pattern: str) -> None:
    for path in (folder.path / "tune").glob(pattern):
        path.unlink()
    with pytest.raises(BadInput, match=r"resume: .*/tune lacks "):
        saved_state.has_state(folder, print)


def test_a_sweep_that_was_killed_before_it_had_any_state_begins(tmp_path: Path) -> None:
    assert not saved_state.has_state(RunDirectory.create(tmp_path, "new"), print)


def test_state_that_everyone_can_write_is_not_read(folder: RunDirectory) -> None:
    for path in (folder.path, folder.path / "tune", newest(folder, "searcher-state-*.pkl")):
        mode = path.stat().st_mode
        path.chmod(mode | 0o002)
        with pytest.raises(BadInput, match=f"resume: everyone can write to {path}, and so have code run here; if you"):
            saved_state.has_state(folder, print)
        path.chmod(mode)
    assert saved_state.has_state(folder, print)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_another_user_s_state_is_not_read(folder: RunDirectory) -> None:
    os.chown(newest(folder, "callback-states-*.pkl"), 65534, 65534)
    with pytest.raises(BadInput, match="is another user's, who could have code run here; if you trust it, copy it"):
        saved_state.has_state(folder, print)


def test_tune_restores_the_last_start_whatever_the_clock_said(tmp_path: Path) -> None:
    """Tune restores the last name, which is of the start's local time."""
    folder = RunDirectory(tmp_path)
    folder.tune.write("tuner.pkl", b"")

    def start(time: str) -> None:
        for name in saved_state.READERS:
            folder.tune.write(name.format(time), time.encode())

    for time in ("2026-09-21_14-13-20", "2026-09-21_11-13-20", "2026-09-20_08-00-00"):
        start(time)
        for _ in range(2):  # a start that is ended before its first snapshot changes nothing
            saved_state.set_before(folder)
            assert folder.tune.files() == sorted(
                [*(name.format("0-before") for name in saved_state.READERS), "tuner.pkl"]
            )
            assert {folder.tune.read(name.format("0-before")) for name in saved_state.READERS} == {time.encode()}


def test_a_power_loss_at_the_start_of_a_resume_leaves_the_state_to_go_on_from(losing_disk: Disk) -> None:
    folder = RunDirectory(losing_disk.path)
    for name in saved_state.READERS:
        folder.tune.write(name.format("2026-09-21_14-13-20"), b"state")
    os.sync()
    saved_state.set_before(folder)
    losing_disk.lose_power()
    newest_files = saved_state._newest(folder.tune.files()).values()
    assert [folder.tune.read(file) for file in newest_files if file is not None] == [b"state"] * len(newest_files)


def resumed(folder: RunDirectory, **more: str) -> int:
    config = sweep.resumed_config(folder, more)
    return sweep.run(config, resume=folder, console=SweepConsole(stream=io.StringIO())).exit_code


def test_a_sweep_that_cannot_go_on_says_so_and_keeps_its_results(folder: RunDirectory) -> None:
    """Tune itself would begin an empty sweep, whose results replaced those of the folder."""
    before = {path: path.read_bytes() for path in (folder.trials_csv, folder.best_toml, folder.summary)}
    text = folder.config.read_text()
    folder.config.write_text(text.replace("seed = 0", "seed = 1"))
    with pytest.raises(BadInput, match="seed: read 1; the sweep began with 0"):
        resumed(folder)
    assert {path: path.read_bytes() for path in before} == before
    folder.config.write_text(text)
    assert resumed(folder, trials="3") == 0
    assert len((folder.trials_csv).read_text().splitlines()) == 4


def test_a_state_that_cannot_be_read_for_another_reason_is_refused(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Any, state: Any) -> None:
        raise KeyError("records")

    monkeypatch.setattr(ArrayCallback, "set_state", fails)
    before = (folder.trials_csv).read_bytes()
    with pytest.raises(
        BadInput, match=r"resume: .*ended: its state cannot be restored \(.*records.*\); its results are"
    ):
        resumed(folder)
    assert (folder.trials_csv).read_bytes() == before


@pytest.mark.parametrize("place", ["t0000_1/checkpoint_000001", "t0000_1/checkpoint_000001/members/t0000"])
def test_a_checkpoint_is_found_in_a_folder_that_was_moved(place: str, tmp_path: Path) -> None:
    tune_folder = RunDirectory(tmp_path / "b").tune
    for earlier in (tmp_path / "tune" / "a", tmp_path / "b", tmp_path / "what?" / "a"):
        assert saved_state.moved((RunDirectory(earlier).tune / place).uri, tune_folder) == (tune_folder / place).uri
    elsewhere = Storage.at(str(tmp_path / "scratch/t0000-1")).uri
    assert saved_state.moved(elsewhere, tune_folder) == elsewhere


def test_a_checkpoint_in_object_storage_keeps_the_options_of_its_folder() -> None:
    tune_folder = Storage("s3://bucket/runs/b/tune?endpoint_override=http://127.0.0.1:9")
    saved = "s3://bucket/runs/a/tune/t0000_1/checkpoint_000001?endpoint_override=http://127.0.0.1:9"
    wanted = "s3://bucket/runs/b/tune/t0000_1/checkpoint_000001?endpoint_override=http://127.0.0.1:9"
    assert saved_state.moved(saved, tune_folder) == wanted
