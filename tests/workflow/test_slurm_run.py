"""The stores that a job's driver claims, brings back and releases; no Slurm is there."""

from __future__ import annotations

import errno
import json
import os
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from raygpu.errors import BadInput, RaygpuError, TrackingError
from raygpu.records import slurm_job
from raygpu.records.slurm_job import SlurmJob
from raygpu.tracking import carried_store
from raygpu.workflow import slurm_run
from raygpu.workflow.slurm_course import INTERRUPTED
from raygpu.workflow.slurm_run import Driver
from tests.slurm_jobs import within_job

COMPLETING = {"JobState": "COMPLETING", "Reason": "None", "PreemptTime": "None", "Restarts": "0"}
"""Fields of a job that somebody has cancelled, as Slurm 22.05 shows them."""


def write(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE IF NOT EXISTS t (x)")
        database.execute("INSERT INTO t VALUES (1)")
        database.commit()


@pytest.fixture(autouse=True)
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run whose job is number 7, on this machine."""
    folder = within_job(tmp_path, monkeypatch)
    (folder / "slurm").mkdir(parents=True)
    record = SlurmJob("sweep-night", "sweep", "7", str(folder), 0.0, store=str(tmp_path / "runs" / "mlflow.db"))
    record.write()
    assert slurm_job.read(folder) == record
    return folder


def driver(job: Path) -> Driver:
    return Driver(job, "sweep", [], 0)


def num_rows(path: Path) -> int:
    with closing(sqlite3.connect(path)) as database:
        return int(database.execute("SELECT COUNT(*) FROM t").fetchone()[0])


def test_a_store_that_the_job_was_not_told_of_comes_back(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, told = job.parents[1] / "other" / "mlflow.db", job.parent / "mlflow.db"
    started = driver(job)
    for name, value in started.stores.variables().items():
        monkeypatch.setenv(name, value)
    write(carried_store.working_copy(store))
    assert carried_store.holder_of(store) == carried_store.holder_of(told) == "7"
    assert not store.exists()
    started.stores.bring_back()
    assert num_rows(store) == 1
    started.stores.release(started.stores.claimed())
    assert carried_store.holder_of(store) is carried_store.holder_of(told) is None


def test_a_cut_file_beside_a_copy_ends_no_job(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told, others = job.parent / "mlflow.db", [job.parents[1] / name / "mlflow.db" for name in ("one", "two")]
    started = driver(job)
    for name, value in started.stores.variables().items():
        monkeypatch.setenv(name, value)
    copies = [carried_store.working_copy(store) for store in (told, *others)]
    for copy in copies:
        write(copy)
    for copy in copies[:2]:
        (copy.parent / carried_store.ORIGIN).write_text("")
    started.stores.bring_back()
    assert [store.is_file() for store in (told, *others)] == [True, False, True]
    assert started._end(1) == 1
    assert carried_store.holder_of(told) is carried_store.holder_of(others[1]) is None


def test_a_job_that_slurm_does_not_queue_again_gives_up_every_claim(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(number: str) -> None:
        raise BadInput(f"scontrol: job {number} is held")

    store, told = job.parents[1] / "other" / "mlflow.db", job.parent / "mlflow.db"
    started = Driver(job, "sweep", [], 5)
    for name, value in started.stores.variables().items():
        monkeypatch.setenv(name, value)
    write(carried_store.working_copy(store))
    monkeypatch.setattr(slurm_run.commands, "requeue", refused)
    monkeypatch.setattr(slurm_run.commands, "shown", lambda number: COMPLETING)
    started.cause = "clock"
    assert started._end(INTERRUPTED) == INTERRUPTED
    assert "not queued again (scontrol: job 7 is held)" in str(slurm_job.read(job))
    assert carried_store.holder_of(store) is carried_store.holder_of(told) is None


def test_a_store_of_another_job_is_not_carried(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = job.parents[1] / "other" / "mlflow.db"
    carried_store.claim(store, "8")
    for name, value in driver(job).stores.variables().items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TrackingError, match="Slurm job 8 works on it"):
        carried_store.working_copy(store)
    assert carried_store.carried(Path(os.environ[carried_store.FOLDER_VARIABLE])) == []


def test_a_job_names_the_claim_that_keeps_it_from_its_store(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    claim = job.parent / "mlflow.db.claim"
    claim.touch()
    assert driver(job).stores.variables() == {carried_store.SPOOL_VARIABLE: "1"}
    assert f"is in use by Slurm job unknown ({claim})" in capsys.readouterr().out
    os.utime(claim, (0, 0))
    assert carried_store.SPOOL_VARIABLE not in driver(job).stores.variables()
    assert carried_store.holder_of(job.parent / "mlflow.db") == "7"


def test_a_job_whose_store_cannot_be_claimed_keeps_its_writes(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    started = driver(job)
    monkeypatch.setattr(os, "link", full)
    assert started.stores.variables() == {carried_store.SPOOL_VARIABLE: "1"}
    assert "cannot be claimed (Disk quota exceeded), so what is for MLflow waits in the run's folder" in (
        capsys.readouterr().out
    )
    assert list(job.parent.glob("mlflow.db*")) == []


def test_other_files_of_the_nodes_disk_stay(job: Path) -> None:
    """As where RAYGPU_NODE_DISK is $SLURM_TMPDIR, and that /scratch/me."""
    disk = Path(os.environ["RAYGPU_NODE_DISK"])
    disk.mkdir()
    (disk / "thesis").write_text("mine")
    started = driver(job)
    slurm_run.node_folders.make(started.place.node_disk, started.place.ray_folder)
    assert started._end(0) == 0
    assert [each.name for each in disk.iterdir()] == ["thesis"]
    assert not started.place.ray_folder.exists()


def test_a_new_submission_uses_nothing_of_the_time_of_earlier_ones(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def used_s() -> float:
        with monkeypatch.context() as patch:
            patch.setenv(slurm_job.VARIABLE, str(job))
            return slurm_job.used_s(job)

    driver(job).job.write(seconds=7000.0)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    driver(job)
    assert used_s() == 7000
    assert slurm_job.used_s(job) == 0, "outside of the job"
    monkeypatch.delenv("SLURM_RESTART_COUNT")
    driver(job).job.write(seconds=7100.0)
    assert used_s() == 100, "sbatched by hand"


def test_the_record_of_an_earlier_version_leaves_a_start_its_budget(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That one noted the seconds of all submissions together."""
    monkeypatch.setenv(slurm_job.VARIABLE, str(job))
    path = job / slurm_job.RECORD
    values = json.loads(path.read_text()) | {"seconds": 20000.0}
    del values["seconds_before"]
    path.write_text(json.dumps(values))
    assert slurm_job.used_s(job) == 0
    monkeypatch.setenv("SLURM_RESTART_COUNT", "3")
    driver(job).job.write(seconds=20050.0)
    driver(job)
    assert slurm_job.used_s(job) == 50


def test_a_change_of_the_clock_uses_nothing_of_the_time(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = driver(job)
    now = time.time()
    monkeypatch.setattr(slurm_run.time, "time", lambda: now + 7200)
    started._account([])
    assert started.job.seconds < 3600


@pytest.mark.parametrize("cause", ["clock", "preempted"])
def test_a_stop_after_the_time_has_run_out_holds(cause: Any, job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_run.commands, "requeue", lambda number: pytest.fail("it comes back"))
    started = Driver(job, "sweep", [], 5)
    started.cause = cause
    started._note(signal.SIGINT, None)
    assert started._end(INTERRUPTED) == INTERRUPTED
    record = slurm_job.read(job)
    assert record is not None
    assert (record.exit_code, record.message) == (INTERRUPTED, "")


def test_a_stop_in_the_last_moment_holds(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The results have been counted, and the node's disk is being emptied."""
    monkeypatch.setattr(slurm_run.commands, "requeue", lambda number: pytest.fail("it comes back"))
    started = Driver(job, "sweep", [], 5)
    started.cause = "clock"
    monkeypatch.setattr(slurm_run.node_folders, "delete", lambda *folders: started._note(signal.SIGINT, None))
    assert started._end(INTERRUPTED) == INTERRUPTED
    assert started.job.exit_code == INTERRUPTED


def test_a_stop_while_the_job_is_queued_again_holds(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm takes the request, and the signal of the stop comes meanwhile."""
    cancelled: list[str] = []
    started = Driver(job, "sweep", [], 5)
    started.stores.variables()
    started.cause = "clock"
    monkeypatch.setattr(slurm_run.commands, "requeue", lambda number: started._note(signal.SIGINT, None))
    monkeypatch.setattr(slurm_run.commands, "cancel", cancelled.append)
    assert started._end(INTERRUPTED) == INTERRUPTED
    assert cancelled == ["7"]
    assert started.job.exit_code == INTERRUPTED
    assert carried_store.holder_of(job.parent / "mlflow.db") is None


@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize(("cause", "max_restarts"), [("clock", 5), ("preempted", 5), ("preempted", 0)])
def test_a_job_that_slurm_itself_queues_again_keeps_its_claim(
    cause: Any, max_restarts: int, is_told: bool, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM comes before the driver asks for it, or with its request, which Slurm refuses."""
    started = Driver(job, "sweep", [], max_restarts)

    def refused(number: str) -> None:
        assert not is_told
        started._note(signal.SIGTERM, None)
        raise BadInput("scontrol: Job is pending execution")

    monkeypatch.setattr(slurm_run.commands, "requeue", refused)
    monkeypatch.setattr(slurm_run.commands, "shown", lambda number: COMPLETING | {"Restarts": "1"})
    started.stores.variables()
    started.cause = cause
    if is_told or not max_restarts:
        started._note(signal.SIGTERM, None)
    started._end(INTERRUPTED)
    assert (started.job.exit_code, started.job.message) == (None, slurm_job.QUEUED_AGAIN)
    assert carried_store.holder_of(job.parent / "mlflow.db") == "7"


@pytest.mark.parametrize("signals", [[signal.SIGINT, signal.SIGTERM], [signal.SIGTERM, signal.SIGINT]])
def test_a_stopped_job_that_slurm_itself_queues_again_is_cancelled(
    signals: list[signal.Signals], job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled: list[str] = []
    monkeypatch.setattr(slurm_run.commands, "shown", lambda number: COMPLETING | {"Restarts": "1"})
    monkeypatch.setattr(slurm_run.commands, "cancel", cancelled.append)
    started = Driver(job, "sweep", [], 5)
    for number in signals:
        started._note(number, None)
    started._end(INTERRUPTED)
    assert cancelled == ["7"]
    assert started.job.exit_code == INTERRUPTED


def test_a_job_of_which_slurm_says_nothing_may_come_again(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(number: str) -> Any:
        raise RaygpuError("scontrol: Slurm has not answered for 60 s")

    for name in ("requeue", "shown"):
        monkeypatch.setattr(slurm_run.commands, name, silent)
    started = Driver(job, "sweep", [], 5)
    started.stores.variables()
    started.cause = "clock"
    started._end(INTERRUPTED)
    assert started.job.exit_code is None
    assert carried_store.holder_of(job.parent / "mlflow.db") == "7"


@pytest.mark.parametrize(
    ("shown", "asked"),
    [
        (COMPLETING, False),
        (COMPLETING | {"Reason": "TimeLimit"}, True),
        (COMPLETING | {"PreemptTime": "2026-11-27T19:51:39"}, True),
        (COMPLETING | {"Restarts": "1"}, False),  # Slurm has queued it again
        ({}, True),
    ],
)
def test_a_cancelled_job_does_not_come_back(
    shown: dict[str, str], asked: bool, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM after the signal before the end: from scancel, or from Slurm at the end of the time."""
    queued: list[str] = []
    monkeypatch.setattr(slurm_run.commands, "requeue", queued.append)
    monkeypatch.setattr(slurm_run.commands, "shown", lambda number: shown)
    monkeypatch.setattr(slurm_run, "KILLED_S", 0.0)
    started = Driver(job, "sweep", [], 5)
    for number in (signal.SIGUSR1, signal.SIGTERM):
        started._note(number, None)
    started._end(INTERRUPTED)
    assert queued == ["7"] * asked


def test_only_a_second_stop_leaves_checkpoints_out(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started, sent = driver(job), []
    notes = [signal.SIGUSR1, signal.SIGINT, signal.SIGTERM, None, signal.SIGINT, None]

    class Process:
        """A command that gets a signal's note before each look, and ends then."""

        returncode = 0

        def __init__(self, *words: object, **options: object) -> None:
            pass

        def poll(self) -> int | None:
            if not notes:
                return 0
            if (number := notes.pop(0)) is not None:
                started._note(number, None)
            return None

        def send_signal(self, number: int) -> None:
            sent.append((number, len(notes)))

    monkeypatch.setattr(slurm_run.subprocess, "Popen", Process)
    monkeypatch.setattr(started, "_notice", lambda: None)
    monkeypatch.setattr(slurm_run, "LOOK_S", 0.0)
    started._command({}, [], None)
    assert sent == [(signal.SIGINT, 5), (signal.SIGINT, 1)]


def full(*words: object, **values: object) -> None:
    raise OSError(errno.EDQUOT, "Disk quota exceeded")


def test_a_full_quota_neither_ends_the_driver_nor_keeps_the_job_from_the_queue(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    queued: list[str] = []
    monkeypatch.setattr(slurm_run.commands, "requeue", queued.append)
    monkeypatch.setattr(slurm_run, "KILLED_S", 0.0)
    monkeypatch.setattr(SlurmJob, "write", full)
    started = Driver(job, "sweep", [], 5)
    assert f"the job's record in {job} cannot be written: Disk quota exceeded" in capsys.readouterr().out
    monkeypatch.setattr(slurm_run, "print", full, raising=False)  # the output is a file of the same disk
    started.stores.variables()
    started.cause = "clock"
    started._end(INTERRUPTED)
    assert queued == ["7"]
    assert carried_store.holder_of(job.parent / "mlflow.db") == "7", "it comes again"
    started.cause = "stopped"
    started._end(INTERRUPTED)
    assert carried_store.holder_of(job.parent / "mlflow.db") is None


def test_a_node_without_a_folder_is_one_line(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("signal", "pthread_sigmask"):
        monkeypatch.setattr(slurm_run.signal, name, lambda *words: None)
    started = driver(job)
    started.place.node_disk.parent.write_text("no folder")
    assert started.run() == 1
    assert f"raygpu: [Errno 20] Not a directory: '{started.place.node_disk}'" in capsys.readouterr().out
    assert started.job.exit_code == 1


@pytest.mark.parametrize(("exit_code", "noted"), [(1, INTERRUPTED), (0, 0), (3, 3), (2, 2)])
@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGUSR1, signal.SIGTERM]])
def test_a_command_that_fails_because_slurm_ends_its_ray_was_stopped(
    signals: list[signal.Signals], exit_code: int, noted: int, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_run.commands, "shown", lambda number: COMPLETING)
    started = Driver(job, "sweep", [], 5)
    for number in signals:
        started._note(number, None)
    assert started._end(exit_code) == noted
    assert started.job.exit_code == noted
