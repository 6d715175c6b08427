"""A SQLite store that is written in place while Slurm jobs carry it: what a job's copy replaces is written again."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from raygpu.errors import TrackingError
from raygpu.search.trial_record import TrialRecord
from raygpu.tracking import carried_store
from raygpu.tracking.runs import RunTree
from raygpu.tracking.stores import sqlite_path
from raygpu.tracking.writer import Writer
from tests.tracking.services import children, epoch, eventually, losses, trial

JOB = """
import sqlite3, sys
from contextlib import closing
from pathlib import Path
from raygpu.tracking import carried_store
shared, disk = Path(sys.argv[1]), Path(sys.argv[2])
copy = carried_store.copy_of(shared, disk)
for step in sys.argv[3:]:
    if step == "claim":
        assert carried_store.claim(shared, "12") is None
    elif step == "fetch":
        carried_store.fetch(shared, disk)
        with closing(sqlite3.connect(copy)) as database:
            database.execute("CREATE TABLE of_the_job (x)")
            database.commit()
    elif step == "bring_back":
        carried_store.bring_back(shared, disk)
    elif step == "release":
        carried_store.release(shared, "12")
"""
Job = Callable[..., None]


@pytest.fixture
def shared(tree: RunTree) -> Path:
    return sqlite_path(tree.uri)


@pytest.fixture
def job(shared: Path, tmp_path: Path) -> Job:
    """Do steps of a job that carries the store, in another process."""

    def run(*steps: str) -> None:
        subprocess.run([sys.executable, "-c", JOB, str(shared), str(tmp_path / "disk"), *steps], check=True)

    return run


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "undelivered.jsonl"


@pytest.fixture
def writer(tree: RunTree, journal: Path) -> Iterator[Writer]:
    made = Writer(lambda: tree, journal, interval_s=0.1)
    made.begin(trial(0))
    made.epochs("t0000", [epoch(1, 1.0)])
    eventually(lambda: made.waiting == 0 and journal.stat().st_size == 0)
    yield made
    made.close(0)


def epochs(tree: RunTree, run_id: str) -> list[tuple[int, float]]:
    """The losses of the trial in the store's present file, whose table of the job is there, too."""
    with closing(sqlite3.connect(sqlite_path(tree.uri))) as database:
        database.execute("SELECT * FROM of_the_job")
    seen = RunTree.open(tree.uri, "digits")
    seen.resume_run(run_id)
    return losses(seen, children(seen)["t0000"])


def test_a_run_waits_for_the_job_and_goes_on_in_its_copy(
    tree: RunTree, writer: Writer, job: Job, journal: Path
) -> None:
    job("claim", "fetch")
    writer.epochs("t0000", [epoch(2, 2.0)])
    eventually(lambda: writer.delayed is not None)
    assert "Slurm job 12 works on it until its end" in str(writer.delayed)
    job("bring_back")
    writer.epochs("t0000", [epoch(3, 3.0)])
    job("bring_back", "release")
    writer.epochs("t0000", [epoch(4, 4.0)])
    writer.end(TrialRecord(trial(0), "finished"))
    assert writer.close(30) == 0
    assert writer.faults == []
    assert not journal.exists()
    assert epochs(tree, str(tree.run_id)) == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]


@pytest.fixture
def late_commit(tree: RunTree, writer: Writer, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch after those of the writer's begin is committed only once a job has claimed and copied the store."""
    log_batch = tree.mlflow.log_batch

    def late(*arguments: object) -> None:
        monkeypatch.setattr(tree.mlflow, "log_batch", log_batch)
        job("claim", "fetch")
        log_batch(*arguments)

    monkeypatch.setattr(tree.mlflow, "log_batch", late)


@pytest.mark.usefixtures("late_commit")
def test_what_was_committed_after_the_job_s_copy_is_delivered_again(
    tree: RunTree, writer: Writer, job: Job, journal: Path
) -> None:
    writer.epochs("t0000", [epoch(2, 2.0)])
    eventually(lambda: writer.waiting == 0)
    assert journal.stat().st_size > 0
    job("bring_back", "release")
    assert writer.close(30) == 0
    assert epochs(tree, str(tree.run_id)) == [(1, 1.0), (2, 2.0)]


@pytest.mark.parametrize("moment", ["before a call", "within a call"])
def test_a_run_that_the_copy_lacks_begins_anew_in_it(
    moment: str, tree: RunTree, job: Job, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over NFS, a job's claim may be seen only after the run has begun."""
    opened: list[RunTree] = []

    def begin() -> RunTree:
        """Open the store, and go on with the run, or begin it."""
        opened.append(RunTree.open(tree.uri, "digits"))
        opened[-1].resume_run(opened[-1].start_run("late", {}, {}, key="late"))
        return opened[-1]

    job("claim", "fetch", "release")
    writer = Writer(begin, journal, interval_s=0.1)
    writer.run_metrics(1, {"first": 1.0})
    eventually(lambda: writer.waiting == 0 and opened and journal.stat().st_size == 0)
    if moment == "before a call":
        job("bring_back")
    else:
        log_batch = opened[0].mlflow.log_batch

        def late(*arguments: object) -> None:
            """Write only once the job's copy has taken the file's place."""
            monkeypatch.setattr(opened[0].mlflow, "log_batch", log_batch)
            job("bring_back")
            log_batch(*arguments)

        monkeypatch.setattr(opened[0].mlflow, "log_batch", late)
    writer.run_metrics(2, {"second": 2.0})
    assert writer.close(30) == 0
    assert (writer.faults, writer.num_refused) == ([], 0)
    assert [path.name for path in journal.parent.glob("refused*")] == []
    assert len(opened) == 2
    run = tree.mlflow.get_run(str(opened[1].run_id))
    assert run.data.metrics["second"] == 2.0


@pytest.mark.usefixtures("late_commit")
def test_an_end_during_the_job_leaves_the_journal_to_a_later_start(
    tree: RunTree, writer: Writer, job: Job, journal: Path
) -> None:
    writer.epochs("t0000", [epoch(2, 2.0)])
    eventually(lambda: writer.waiting == 0)
    assert writer.close(1) == 1
    assert "Slurm job 12" in str(writer.delayed)
    tree.patience_s = 0
    with pytest.raises(TrackingError, match="Slurm job 12"):
        tree.end_run(str(tree.run_id), "finished")
    job("bring_back", "release")
    run_id = str(tree.run_id)
    again = RunTree.open(tree.uri, "digits")
    again.resume_run(run_id)
    assert Writer(lambda: again, journal).close(30) == 0
    assert epochs(tree, run_id) == [(1, 1.0), (2, 2.0)]


def test_a_full_disk_costs_nothing_that_waits_for_the_job_s_copy(
    tree: RunTree, writer: Writer, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_batch, write = tree.mlflow.log_batch, os.write

    def late(*arguments: object) -> None:
        """Commit only once a job has claimed and copied the store."""
        monkeypatch.setattr(tree.mlflow, "log_batch", log_batch)
        job("claim", "fetch")
        log_batch(*arguments)

    def full(file: int, data: bytes) -> int:
        """Take nothing once."""
        monkeypatch.setattr(os, "write", write)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tree.mlflow, "log_batch", late)
    writer.epochs("t0000", [epoch(2, 2.0)])
    eventually(lambda: writer.waiting == 0)
    monkeypatch.setattr(os, "write", full)
    writer.epochs("t0000", [epoch(3, 3.0)])
    eventually(lambda: writer.delayed is not None)
    assert "No space left on device" in writer.faults[0]
    job("bring_back", "release")
    assert writer.close(30) == 0
    assert epochs(tree, str(tree.run_id)) == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_a_job_that_brings_nothing_back_leaves_the_file_as_it_is(
    tree: RunTree, writer: Writer, job: Job, journal: Path
) -> None:
    job("claim", "release")
    writer.epochs("t0000", [epoch(2, 2.0)])
    eventually(lambda: writer.waiting == 0 and journal.stat().st_size == 0)
    assert tree.in_place.is_whole
    assert losses(tree, children(tree)["t0000"]) == [(1, 1.0), (2, 2.0)]


def test_no_connection_outlives_its_file(tree: RunTree, job: Job) -> None:
    run_id = tree.create_trial(trial(0))
    job("claim", "fetch", "bring_back", "release")
    with pytest.raises(TrackingError, match="took the place of"):
        tree.end_run(str(tree.run_id), "finished")  # what is told again costs less than what is lost
    tree.mlflow.set_tag(run_id, "later", "yes")
    with closing(sqlite3.connect(sqlite_path(tree.uri))) as database:
        assert database.execute("SELECT value FROM tags WHERE key = 'later'").fetchall() == [("yes",)]


def test_a_copy_on_a_node_and_a_server_are_always_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from raygpu.tracking.in_place import InPlace

    monkeypatch.setenv(carried_store.FOLDER_VARIABLE, str(tmp_path / "disk"))
    copy = carried_store.fetch(tmp_path / "mlflow.db", tmp_path / "disk")
    carried_store.claim(copy, "12")
    carried_store.claim(tmp_path / "mlflow.db", "12")
    assert InPlace(f"sqlite:///{copy}").is_whole
    assert InPlace("http://mlflow:5000").is_whole
    assert not InPlace(f"sqlite:///{tmp_path / 'mlflow.db'}").is_whole
