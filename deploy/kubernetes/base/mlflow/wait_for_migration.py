"""Until the job mlflow-migrate has brought MLflow's tables to the release that is installed here.

The database is the one of libpq's variables.
"""

import importlib.util
import time
from pathlib import Path

import psycopg2
from alembic.script import ScriptDirectory

FOLDERS = {"alembic_version": "store/db_migrations", "alembic_version_auth": "server/auth/db/migrations"}
mlflow = Path(importlib.util.find_spec("mlflow").origin).parent
wanted = {table: sorted(ScriptDirectory(str(mlflow / folder)).get_heads()) for table, folder in FOLDERS.items()}
while True:
    try:
        found = {}
        with psycopg2.connect("") as connection, connection.cursor() as cursor:
            for table in FOLDERS:
                cursor.execute(f"select version_num from {table} order by 1")
                found[table] = [version for (version,) in cursor.fetchall()]
        if found == wanted:
            break
        print(f"the tables are at {found}, this release wants {wanted}", flush=True)
    except psycopg2.Error as error:
        print(error, flush=True)
    time.sleep(2)
