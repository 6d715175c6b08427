"""Until the job mlflow-migrate has made the last of MLflow's tables. The database is the one of libpq's variables."""

import time

import psycopg2

while True:
    try:
        with psycopg2.connect("") as connection, connection.cursor() as cursor:
            cursor.execute("select version_num from alembic_version_auth")
            if cursor.fetchone():
                break
    except psycopg2.Error as error:
        print(error, flush=True)
    time.sleep(2)
