"""A SQLite store on a node's own disk: it comes back whole, and one job at a time has it."""

from __future__ import annotations

import errno
import os
import socket
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from raygpu.errors import TrackingError
from raygpu.tracking import carried_store


def write(path: Path, value: int) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE IF NOT EXISTS t (x)")
        database.execute("INSERT INTO t VALUES (?)", (value,))
        database.commit()


def read(path: Path) -> list[int]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        return [x for (x,) in database.execute("SELECT x FROM t ORDER BY x")]


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    path = tmp_path / "runs" / "mlflow.db"
    path.parent.mkdir()
    write(path, 1)
    return path


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(carried_store.FOLDER_VARIABLE, str(tmp_path / "disk"))
    return tmp_path / "disk"


def test_a_copy_is_worked_on_and_brought_back(shared: Path, disk: Path) -> None:
    copy = carried_store.working_copy(shared)
    assert copy.is_relative_to(disk)
    with closing(sqlite3.connect(copy)) as open_writer:  # MLflow's own connection stays open
        write(copy, 2)
        open_writer.execute("SELECT * FROM t")
        assert read(shared) == [1]
        carried_store.bring_back(shared, disk)
    assert read(shared) == [1, 2]
    assert sorted(each.name for each in shared.parent.iterdir()) == ["mlflow.db"]
    with closing(sqlite3.connect(shared)) as database:  # a write-ahead log does not work over a network
        assert database.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_a_store_that_is_not_there_yet_begins_on_the_disk(tmp_path: Path, disk: Path) -> None:
    shared = tmp_path / "new" / "mlflow.db"
    write(carried_store.working_copy(shared), 5)
    carried_store.bring_back(shared, disk)
    assert read(shared) == [5]


def test_it_is_brought_back_once_in_a_while(shared: Path, disk: Path) -> None:
    copy = carried_store.working_copy(shared)
    write(copy, 2)
    assert carried_store.keep(copy)
    write(copy, 3)
    assert not carried_store.keep(copy)
    assert read(shared) == [1, 2]
    assert carried_store.keep(copy, now=True)
    assert read(shared) == [1, 2, 3]


def test_a_full_shared_disk_keeps_the_old_file(shared: Path, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = carried_store.working_copy(shared)
    write(copy, 2)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(carried_store.os, "fsync", full)
    assert not carried_store.keep(copy, now=True)
    assert read(shared) == [1]
    assert not list(shared.parent.glob("*.tmp"))


def test_one_job_at_a_time_has_it(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert carried_store.claim(shared, "12") is None
    assert carried_store.claim(shared, "12") is None  # after it was queued again
    assert carried_store.claim(shared, "13") == "12"
    monkeypatch.delenv(carried_store.FOLDER_VARIABLE, raising=False)
    with pytest.raises(TrackingError, match="Slurm job 12 works on it"):
        carried_store.working_copy(shared)
    carried_store.release(shared, "13")
    assert carried_store.holder_of(shared) == "12"
    carried_store.release(shared, "12")
    assert carried_store.working_copy(shared) == shared


def test_a_store_that_is_not_carried_has_all_its_writes(shared: Path) -> None:
    assert carried_store.keep(None)
    assert carried_store.keep(shared)


def test_two_nodes_whose_processes_have_one_pid_claim_apart(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link, names = os.link, list[str]()

    def noted(mine: Path, path: Path) -> None:
        names.append(mine.name)
        link(mine, path)

    monkeypatch.setattr(os, "link", noted)
    for node in ("one", "two"):
        monkeypatch.setattr(socket, "gethostname", lambda node=node: node)
        carried_store.claim(shared, node)
    assert len(set(names)) == 2
    assert carried_store.holder_of(shared) == "one"


@pytest.mark.parametrize("number", carried_store.WITHOUT_LINKS)
def test_a_file_system_without_hard_links_has_claims(
    number: int, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refused)
    assert carried_store.claim(shared, "12") is None
    assert carried_store.claim(shared, "12") is None
    assert carried_store.claim(shared, "13") == "12"
    assert sorted(each.name for each in shared.parent.iterdir() if "claim" in each.name) == ["mlflow.db.claim"]
    carried_store.release(shared, "12")
    assert carried_store.holder_of(shared) is None


def test_a_claim_that_does_not_say_whose_it_is_holds(shared: Path) -> None:
    carried_store.claim_of(shared).touch()
    assert carried_store.holder_of(shared) == carried_store.claim(shared, "12") == carried_store.UNKNOWN
    with pytest.raises(TrackingError, match="delete"):
        carried_store.working_copy(shared)


def test_a_claim_that_stays_empty_is_nobodys(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(carried_store.FOLDER_VARIABLE, raising=False)
    path, old = carried_store.claim_of(shared), time.time() - 2 * carried_store.STALE_S
    path.touch()
    os.utime(path, (old, old))
    assert carried_store.working_copy(shared) == shared
    assert carried_store.claim(shared, "12") is None
    assert carried_store.claim(shared, "13") == carried_store.holder_of(shared) == "12"
    os.utime(path, (old, old))  # a job may run for days
    assert carried_store.claim(shared, "13") == carried_store.holder_of(shared) == "12"


def test_a_disk_that_is_full_at_the_last_moment_leaves_no_claim(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_links(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "link", without_links)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        carried_store.claim(shared, "12")
    assert carried_store.holder_of(shared) is None
    assert sorted(each.name for each in shared.parent.iterdir()) == ["mlflow.db"]


def test_a_store_that_cannot_be_claimed_is_told(shared: Path, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setenv(carried_store.OWNER_VARIABLE, "12")
    monkeypatch.setattr(os, "link", full)
    with pytest.raises(TrackingError, match=r"cannot be claimed: Disk quota exceeded"):
        carried_store.working_copy(shared)


def test_a_store_that_the_job_has_claimed_already_is_opened_again_on_a_full_disk(
    shared: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setenv(carried_store.OWNER_VARIABLE, "12")
    copy = carried_store.working_copy(shared)
    monkeypatch.setattr(os, "link", full)
    monkeypatch.setattr(Path, "write_text", full)
    assert carried_store.working_copy(shared) == copy


def test_threads_of_a_process_claim_at_once(tmp_path: Path) -> None:
    stores = [tmp_path / f"{number}.db" for number in range(100)]
    start = threading.Barrier(4)

    def claims(_: int) -> list[str | None]:
        """Claim each store at about the time of the other threads."""
        holders = []
        for store in stores:
            start.wait(10)
            holders.append(carried_store.claim(store, "12"))
        return holders

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(claims, range(4))) == [[None] * len(stores)] * 4
    assert {each.suffix for each in tmp_path.iterdir()} == {carried_store.CLAIM}


def test_a_full_disk_of_the_node_leaves_the_path_of_the_shared_file(
    shared: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = carried_store.working_copy(shared)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(carried_store, "write_whole", full)
    monkeypatch.setattr(Path, "write_text", full)
    assert carried_store.working_copy(shared) == copy
    assert carried_store.carried(disk) == [shared]


@pytest.mark.parametrize("content", [b"", b"\xff", None])
def test_a_copy_whose_origin_is_lost_is_not_brought_back_until_it_is_opened_again(
    content: bytes | None, shared: Path, disk: Path
) -> None:
    copy = carried_store.working_copy(shared)
    write(copy, 2)
    origin = copy.parent / carried_store.ORIGIN
    origin.unlink() if content is None else origin.write_bytes(content)
    assert carried_store.carried(disk) == []
    assert not carried_store.keep(copy, now=True)
    assert read(shared) == [1]
    assert carried_store.working_copy(shared) == copy
    assert carried_store.keep(copy, now=True)
    assert read(shared) == [1, 2]
