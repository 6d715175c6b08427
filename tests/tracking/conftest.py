"""Real stores for the tests: a SQLite file, an MLflow server on loopback, a PostgreSQL of our own.

MLflow takes ten seconds to import and more to create a database, so each is made once and copied or shared.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from raygpu.tracking.runs import RunTree
from tests.services.postgres import postgres
from tests.tracking.services import Server


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
    with postgres("sweeper", "s3cret-word") as found:
        yield f"postgresql://{found.user}:s3cret-word@127.0.0.1:{found.port}/{found.database}"
