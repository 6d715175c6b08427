"""Real stores for the tests: a SQLite file, an MLflow server on loopback, a PostgreSQL of our own.

MLflow takes ten seconds to import and more to create a database, so each is made once and copied or shared.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from raygpu.tracking.runs import RunTree
from tests.tracking.services import Server, free_port


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite store in its first state."""
    path = tmp_path_factory.mktemp("template") / "new folder" / "mlflow.db"
    RunTree.open(f"sqlite:///{path}", "first")
    with closing(sqlite3.connect(path)) as database:  # it is copied: what its log holds has to be in it
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


@pytest.fixture
def sqlite_uri(template: Path, tmp_path: Path) -> str:
    shutil.copy(template, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.fixture
def tree(sqlite_uri: str) -> RunTree:
    opened = RunTree.open(sqlite_uri, "digits")
    opened.start_sweep("sweep", {"purpose": "test"}, {"trials": 3})
    return opened


@pytest.fixture(scope="session")
def server(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(template, folder / "server.db")
    made = Server(folder, folder / "server.db")
    made.start()
    try:
        made.wait()
        yield made
    finally:
        made.end()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The URI of an empty database, with a password that has to be kept out of messages."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("no initdb under /usr/lib/postgresql/*/bin: install the package postgresql")
    # Not below pytest's folder: that one is closed to the user that the database runs as.
    folder = Path(tempfile.mkdtemp(prefix="raygpu-postgresql-", dir="/tmp"))
    secret = folder / "password"
    secret.write_text("s3cret-word\n")
    as_user: list[str] = []
    if os.geteuid() == 0:  # initdb refuses root
        shutil.chown(folder, "postgres")
        shutil.chown(secret, "postgres")
        as_user = ["runuser", "-u", "postgres", "--"]
    port, data, tools = free_port(), folder / "data", found[-1].parent
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
    start = [f"{tools}/pg_ctl", "-D", f"{data}", "-w", "-l", f"{folder}/log", "-o", options, "start"]
    init = [f"{tools}/initdb", "-D", f"{data}", "-A", "md5", "-U", "sweeper", "--no-sync", "--pwfile", f"{secret}"]
    try:
        subprocess.run([*as_user, *init], check=True, capture_output=True, cwd="/")
        subprocess.run([*as_user, *start], check=True, stdout=subprocess.DEVNULL, cwd="/")
        yield f"postgresql://sweeper:s3cret-word@127.0.0.1:{port}/postgres"
    finally:
        stop = [f"{tools}/pg_ctl", "-D", f"{data}", "-m", "immediate", "stop"]
        subprocess.run([*as_user, *stop], check=False, capture_output=True, cwd="/")
        shutil.rmtree(folder, ignore_errors=True)
