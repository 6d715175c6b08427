"""A PostgreSQL server of the tests' own, on loopback and with a password."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.tracking.services import free_port


@dataclass(frozen=True)
class Postgres:
    """A running one, with one empty database of its user's."""

    port: int
    user: str
    database: str
    tools: Path
    """The folder of psql and its like."""


@contextmanager
def postgres(user: str, password: str, database: str = "postgres", auth: str = "scram-sha-256") -> Iterator[Postgres]:
    """Skips the test where the package is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("no initdb under /usr/lib/postgresql/*/bin: install the package postgresql")
    # Not below pytest's folder: that one is closed to the user that the database runs as.
    folder = Path(tempfile.mkdtemp(prefix="raygpu-postgresql-", dir="/tmp"))
    secret = folder / "password"
    secret.write_text(f"{password}\n")
    as_user: list[str] = []
    if os.geteuid() == 0:  # initdb refuses root
        shutil.chown(folder, "postgres")
        shutil.chown(secret, "postgres")
        as_user = ["runuser", "-u", "postgres", "--"]
    port, data, tools = free_port(), folder / "data", found[-1].parent
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
    start = [f"{tools}/pg_ctl", "-D", f"{data}", "-w", "-l", f"{folder}/log", "-o", options, "start"]
    init = [f"{tools}/initdb", "-D", f"{data}", "-A", auth, "-U", user, "--no-sync", "--pwfile", f"{secret}"]
    try:
        subprocess.run([*as_user, *init], check=True, capture_output=True, cwd="/")
        subprocess.run([*as_user, *start], check=True, stdout=subprocess.DEVNULL, cwd="/")
        if database != "postgres":
            create = [f"{tools}/createdb", "-h", "127.0.0.1", "-p", str(port), "-U", user, database]
            subprocess.run(create, check=True, env={**os.environ, "PGPASSWORD": password})
        yield Postgres(port, user, database, tools)
    finally:
        stop = [f"{tools}/pg_ctl", "-D", f"{data}", "-m", "immediate", "stop"]
        subprocess.run([*as_user, *stop], check=False, capture_output=True, cwd="/")
        shutil.rmtree(folder, ignore_errors=True)
