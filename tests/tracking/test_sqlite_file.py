from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy

from raygpu.tracking import sqlite_file
from raygpu.tracking.runs import RunTree


def journal(path: Path) -> str:
    with closing(sqlite3.connect(path)) as database:
        return str(database.execute("PRAGMA journal_mode").fetchone()[0])


@pytest.fixture
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file systems as this file tells them."""
    path = tmp_path / "mounts"
    monkeypatch.setattr(sqlite_file, "MOUNTS", path)
    return path


def test_a_store_that_raygpu_makes_has_a_write_ahead_log(tmp_path: Path, mounts: Path) -> None:
    mounts.write_text("root / ext4 rw 0 0\n")
    tree = RunTree.open(f"sqlite:///{tmp_path}/runs/mlflow.db", "digits")
    tree.end_run(tree.start_run("one", {}, {}), "finished")
    assert journal(tmp_path / "runs" / "mlflow.db") == "wal"
    assert sqlite_file.has_log(tmp_path / "runs" / "mlflow.db")


def test_a_file_that_exists_keeps_its_journal(tmp_path: Path, mounts: Path) -> None:
    mounts.write_text("root / ext4 rw 0 0\n")
    path = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE notes (text)")
    sqlite_file.create(path)
    assert journal(path) == "delete"
    assert not sqlite_file.has_log(path)
    assert not sqlite_file.has_log(tmp_path / "none.db")


def test_a_log_that_is_asked_for_stays_while_it_is_written(tmp_path: Path, mounts: Path) -> None:
    """Another process that opens and closes the file must not take itself for the last one, and delete the log."""
    mounts.write_text("root / ext4 rw 0 0\n")
    path = tmp_path / "mlflow.db"
    sqlite_file.create(path)
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE notes (text)"))
    assert sqlite_file.has_log(path)
    other = (
        "import sqlite3, sys; d = sqlite3.connect(sys.argv[1]); d.execute('SELECT * FROM notes').fetchall(); d.close()"
    )
    subprocess.run([sys.executable, "-c", other, str(path)], check=True)
    assert Path(f"{path}-wal").exists()
    engine.dispose()


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs"])
def test_no_file_is_made_across_a_network(tmp_path: Path, mounts: Path, kind: str) -> None:
    mounts.write_text(f"root / ext4 rw 0 0\nserver:/home {tmp_path} {kind} rw 0 0\n")
    sqlite_file.create(tmp_path / "mlflow.db")
    assert not (tmp_path / "mlflow.db").exists()


def test_the_file_system_is_the_nearest_mount_point_s(tmp_path: Path, mounts: Path) -> None:
    spaced = tmp_path / "my runs"
    spaced.mkdir()
    mounts.write_text(f"root / ext4 rw 0 0\nserver:/x {tmp_path}/my\\040runs nfs rw 0 0\n")
    assert sqlite_file.file_system(spaced) == "nfs"
    assert sqlite_file.file_system(tmp_path) == "ext4"
    accented = tmp_path / "données"
    accented.mkdir()
    mounts.write_text(f"root / ext4 rw 0 0\nserver:/x {accented} nfs rw 0 0\n")
    assert sqlite_file.file_system(accented) == "nfs"
    mounts.unlink()
    assert sqlite_file.file_system(tmp_path) is None


def synchronous(uri: str) -> int:
    engine = sqlalchemy.create_engine(uri)
    with engine.connect() as connection:
        return int(connection.execute(sqlalchemy.text("PRAGMA synchronous")).scalar_one())


def test_only_files_with_a_write_ahead_log_that_raygpu_syncs_defer_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "_deferring", set())
    paths = {name: tmp_path / f"{name}.db" for name in ("log", "no_log", "others")}
    for path in paths.values():
        with closing(sqlite3.connect(path)) as database:
            database.execute(f"PRAGMA journal_mode={'DELETE' if path.stem == 'no_log' else 'WAL'}")
    full, normal = 2, 1
    sqlite_file.defer_syncs(paths["log"])
    sqlite_file.defer_syncs(paths["no_log"])
    assert {name: synchronous(f"sqlite:///{path}") for name, path in paths.items()} == {
        "log": normal,
        "no_log": full,
        "others": full,
    }


def test_a_sync_waits_for_the_write_ahead_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(sqlite_file.os, "fsync", lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}")))
    path = tmp_path / "mlflow.db"
    sqlite_file.sync(path)
    assert synced == [], "no log: nothing was committed"
    (tmp_path / "mlflow.db-wal").write_bytes(b"log")
    sqlite_file.sync(path)
    assert synced == [f"{path}-wal"]
