"""A run's folder: what is written there for a person, and what is fetched of a run in object storage."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from raygpu.errors import BadInput
from raygpu.records import stored_run
from raygpu.records.run_data import RunData
from raygpu.records.run_directory import RESUMED_AT, RunDirectory
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import Trial
from raygpu.storage import JOB_VARIABLE, Storage
from tests.report_cases import sweep_folder

HOLD = """
import sys, time
from pathlib import Path
from raygpu.records import run_lock
run_lock.claim(Path(sys.argv[1]))
print(flush=True)
time.sleep(600)
"""


def test_the_best_trial_is_trained_by_the_folder_or_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command then has the sweep's code, its store of MLflow, and what lies in object storage."""
    assert RunDirectory(Path("/runs/my sweep")).promoted_by() == "raygpu train --from '/runs/my sweep'"
    stored = RunDirectory(tmp_path / "mine", Storage("s3://bucket/runs/mine"))
    assert stored.promoted_by() == "raygpu train --from s3://bucket/runs/mine"
    monkeypatch.setenv(JOB_VARIABLE, "1")
    assert stored.promoted_by() == "raygpu submit train --from s3://bucket/runs/mine"


def test_an_error_that_names_a_file_in_another_encoding_is_written(tmp_path: Path) -> None:
    record = TrialRecord(Trial("t0003", 1, {}), "failed", error="ValueError: cannot decode bild-\udcfc.png")
    folder = RunDirectory(tmp_path)
    folder.write_failures([record])
    assert (folder.trials / "t0003" / "error.txt").read_text() == "ValueError: cannot decode bild-\\udcfc.png"


def test_the_error_of_a_trial_that_has_succeeded_since_is_deleted(tmp_path: Path) -> None:
    folder = RunDirectory(tmp_path, Storage(str(tmp_path / "shared")))
    folder.write_failures([TrialRecord(Trial("t0003", 1, {}), "failed", error="ValueError: at first")])
    folder.shared_trials.upload(folder.trials)
    assert (folder.shared_trials / "t0003").has("error.txt")
    folder.write_failures([TrialRecord(Trial(name, 1, {}), "finished") for name in ("t0002", "t0003")])
    assert not (folder.trials / "t0003" / "error.txt").exists()
    assert not (folder.shared_trials / "t0003").has("error.txt")


def test_the_error_of_a_failed_training_stays_when_another_machine_hands_over(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path / "shared"))
    first, second = (RunDirectory(tmp_path / name, storage) for name in ("first", "second"))
    for folder in (first, second):
        folder.path.mkdir()
    first.error.write_text("Traceback")
    first.publish()
    stored_run.fetch(second)
    second.hand_over()
    assert storage.read("error.txt") == b"Traceback"
    second.error.unlink()  # it has ended well since
    second.hand_over()
    assert not storage.has("error.txt")


def test_another_machine_learns_that_a_run_goes_on_before_its_timeline_comes(tmp_path: Path) -> None:
    first, second = (sweep_folder(tmp_path / name) for name in ("first", "second"))
    storage = Storage(str(tmp_path / "shared"))
    here, there = (RunDirectory(folder.path, storage) for folder in (first, second))
    here.publish()
    here.begin_again()
    stored_run.fetch(there)
    assert there.read_summary() is None
    read = RunData.load(there)
    assert (read.ended, len(read.trials), RESUMED_AT in read.summary) == (True, 20, True)


def test_a_run_that_was_resumed_twice_goes_on_from_the_first_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunDirectory(tmp_path)
    folder.begin_again()
    assert not folder.summary.exists()
    folder.write_summary({"num_trials": 3})
    for moment in (10.0, 20.0):
        monkeypatch.setattr(time, "time", lambda moment=moment: moment)
        folder.begin_again()
    assert folder.read_last_summary() == {"num_trials": 3, RESUMED_AT: 10.0}
    folder.summary.write_text("{")
    folder.begin_again()
    assert folder.summary.read_text() == "{"


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """A run that this machine has begun, and its copy, which has more."""
    monkeypatch.chdir(tmp_path)
    storage = Storage(str(tmp_path / "bucket" / "digits-1"))
    run = RunDirectory(tmp_path / "runs" / "digits-1", storage)
    run.path.mkdir(parents=True)
    run.config.write_text(f'name = "digits-1"\nstorage = "{storage.parent}"\n')
    run.run.write_text("here")
    storage.upload(run.path)
    storage.write("run.json", b"there")
    storage.write("population.jsonl", b"{}\n")
    return storage


def test_files_of_a_command_that_works_on_the_run_are_left_alone(bucket: Storage) -> None:
    run = Path("runs/digits-1").resolve()
    with subprocess.Popen([sys.executable, "-c", HOLD, str(run)], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()
            folder = RunDirectory._fetched(bucket)
            assert (folder.run.read_text(), folder.population.exists()) == ("here", False)
            with pytest.raises(BadInput, match="another process works on this run"):
                folder.claim()
        finally:
            other.kill()
    assert RunDirectory._fetched(bucket).run.read_text() == "there"


def test_threads_that_write_the_runs_state_lose_nothing(tmp_path: Path) -> None:
    folder = RunDirectory(tmp_path)

    def write(name: str) -> None:
        for number in range(100):
            folder.write_run({f"{name}{number}": number})

    with ThreadPoolExecutor() as threads:
        list(threads.map(write, "abc"))
    assert len(folder.read_run()) == 300
    assert [file.name for file in tmp_path.iterdir()] == [folder.run.name]


def test_another_command_s_folder_is_not_resumed(tmp_path: Path) -> None:
    folder = RunDirectory(tmp_path)
    folder.config.write_text("")
    folder.write_run({"kind": "sweep"})
    with pytest.raises(BadInput, match=r"is a sweep's; go on with it by raygpu sweep --resume"):
        RunDirectory.existing(tmp_path, "train")


def test_a_run_whose_configuration_was_emptied_is_refused(tmp_path: Path) -> None:
    """Its resume would train by the defaults."""
    folder = RunDirectory(tmp_path)
    folder.config.write_text("")
    folder.write_run({"kind": "sweep"})
    with pytest.raises(BadInput, match=r"config.toml has no name: restore it, or begin a new run"):
        RunDirectory.existing(tmp_path)


def test_a_moved_training_has_its_own_checkpoint(tmp_path: Path) -> None:
    """Another run may have its name by now."""
    earlier, moved = tmp_path / "runs" / "a", tmp_path / "kept"
    for folder in (earlier, moved):
        (folder / "checkpoints" / "best").mkdir(parents=True)
    summary = {"checkpoint": str(earlier / "checkpoints" / "best")}
    found = RunDirectory(moved).noted_checkpoint(summary)
    assert found is not None
    assert found.path == moved / "checkpoints" / "best"
    (moved / "checkpoints" / "best").rmdir()
    assert RunDirectory(moved).noted_checkpoint(summary) is None
    assert RunDirectory(moved).noted_checkpoint({"checkpoint": None}) is None
