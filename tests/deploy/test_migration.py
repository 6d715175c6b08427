"""An MLflow server waits for the tables of its own release, on a real PostgreSQL."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import mlflow
import psycopg2
from alembic.script import ScriptDirectory

from tests.services.manifests import KUBERNETES
from tests.services.postgres import postgres

MIGRATIONS = {"alembic_version": "store/db_migrations", "alembic_version_auth": "server/auth/db/migrations"}


def test_a_server_of_a_new_release_waits_until_both_halves_are_migrated() -> None:
    """An earlier release has left its own revision in each table."""
    scripts = {
        table: ScriptDirectory(str(Path(mlflow.__file__).parent / folder)) for table, folder in MIGRATIONS.items()
    }
    heads = {table: script.get_heads()[0] for table, script in scripts.items()}
    earlier = {table: script.get_bases()[0] for table, script in scripts.items()}
    assert all(heads[table] != earlier[table] for table in MIGRATIONS)
    with postgres("mlflow", "secret", "mlflow") as server:
        found = {"PGHOST": "127.0.0.1", "PGPORT": str(server.port), "PGUSER": "mlflow", "PGDATABASE": "mlflow"}
        found |= {"PGPASSWORD": "secret"}
        execute = executor(found)
        for table, revision in earlier.items():
            execute(f"create table {table} (version_num varchar(32)); insert into {table} values ('{revision}')")
        waiting = subprocess.Popen(
            [sys.executable, str(KUBERNETES / "base/mlflow/wait_for_migration.py")],
            env={**os.environ, **found}, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert waiting.stdout is not None
        try:
            for table, revision in earlier.items():
                assert revision in waiting.stdout.readline(), "it waits, and says for what"
                execute(f"update {table} set version_num = '{heads[table]}'")
            assert waiting.wait(30) == 0
        finally:
            waiting.kill()


def executor(variables: dict[str, str]) -> Callable[[str], None]:
    """A function that executes statements in a database."""
    names = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "dbname": "PGDATABASE", "password": "PGPASSWORD"}

    def execute(statements: str) -> None:
        """Execute statements, each in the same transaction."""
        with psycopg2.connect(**{key: variables[name] for key, name in names.items()}) as connection:
            connection.cursor().execute(statements)

    return execute
