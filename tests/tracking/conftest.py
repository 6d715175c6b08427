"""Real stores for the tests: a SQLite file, an MLflow server on loopback, a PostgreSQL of our own.

Each is made once and copied or shared.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raygpu.tracking.runs import RunTree
from tests.services.postgres import postgres
from tests.tracking.services import Server


@pytest.fixture
def sqlite_uri(new_store: Callable[[Path], str], tmp_path: Path) -> str:
    return new_store(tmp_path)


@pytest.fixture
def tree(sqlite_uri: str) -> RunTree:
    opened = RunTree.open(sqlite_uri, "digits")
    opened.start_run("sweep", {"purpose": "test"}, {"trials": 3})
    return opened


@pytest.fixture(scope="session")
def server(mlflow_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(mlflow_template, folder / "server.db")
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
