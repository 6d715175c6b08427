"""Open MLflow's client without its log output, and turn its failures into raygpu's errors."""

from __future__ import annotations

import getpass
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from raygpu.errors import TrackingError, cleaned, one_line, redacted
from raygpu.tracking import carried_store, sqlite_file
from raygpu.tracking.stores import check, scheme, sqlite_path, with_driver

TRIES = 4
MIGRATED = ("already exists", "out-of-date database schema", "UNIQUE constraint", "duplicate key")
"""Phrases of a store's error while another process is creating the same schema or experiment."""
CODES_OF_STATUS = ("BAD_REQUEST", "ENDPOINT_NOT_FOUND", "ALREADY_EXISTS", "CANCELLED")
"""Error codes that MLflow's client gives to an answer that is not MLflow's, by the HTTP status 400, 404, 409 and 499.
Its own checks give others."""
TOO_LARGE = 413
"""HTTP status of a content that is too large."""

FINAL = (ArithmeticError, AttributeError, ImportError, LookupError, NotImplementedError, TypeError, ValueError)
"""Python's own errors that another try raises again."""
DAMAGED = "database disk image is malformed"
"""SQLite's message for a file that has lost parts: it may come back from a copy."""
DATABASES = ("alembic", "sqlite3")
"""Modules whose errors say that a database cannot be used. What passes comes from SQLAlchemy, which tells it apart."""


class Refused(TrackingError):
    """The store refused a request for good: another try would not help."""


def connect(uri: str, experiment: str) -> tuple[Any, str, str]:
    """Return MLflow's client, the store's full URI, and the id of the experiment, which is created if need be.

    The full URI has an absolute path, or names the database driver. Raises TrackingError.
    """
    check(uri)
    kind = scheme(uri)
    prepare_environment(served=kind in ("http", "https"))
    location = None
    if kind == "sqlite":
        path = sqlite_path(uri)
        location = path.parent / "artifacts"
        path = carried_store.working_copy(path)
        head, _, options = uri.partition("?")
        uri = f"{head.split('://', 1)[0]}:///{path}{'?' + options if options else ''}"
    uri = with_driver(uri)
    if kind == "postgresql" and "connect_timeout" not in uri:
        uri += f"{'&' if '?' in uri else '?'}connect_timeout=10"  # without it a lost host hangs for minutes
    try:
        with _alone(uri):
            for retries in reversed(range(TRIES)):
                try:
                    return _connect(uri, experiment, location)
                except Exception as error:
                    if not retries or not any(sign in str(error) for sign in MIGRATED):
                        raise
                    time.sleep(2.0)
    except TrackingError:
        raise
    except Exception as error:
        raise fault(uri, error) from error
    raise AssertionError("unreachable")


def _client_class() -> Any:
    """Import MLflow's client, anew if that fails.

    Where threads import at once, importlib may give one of them a half-made module rather than wait for ever. MLflow's
    modules that are left by such a failure import each other in another order, in which they never succeed.
    """
    try:
        from mlflow.tracking import MlflowClient
    except (ImportError, AttributeError):
        for name in [name for name in sys.modules if name.partition(".")[0] == "mlflow"]:
            del sys.modules[name]
        from mlflow.tracking import MlflowClient
    return MlflowClient


def _connect(uri: str, experiment: str, location: Path | None) -> tuple[Any, str, str]:
    client_class = _client_class()
    # MLflow's own errors reach the user through `fault`; its log would add tracebacks, with the URI in them.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    served = scheme(uri) in ("http", "https")
    if not served:
        if scheme(uri) == "sqlite":
            sqlite_file.create(sqlite_path(uri))
            sqlite_file.defer_syncs(sqlite_path(uri))
        _try_database(uri)
    mlflow = client_class(uri)
    mlflow_experiment = mlflow.get_experiment_by_name(experiment)
    if mlflow_experiment is None:
        place = location.absolute().as_uri() if location is not None and not served else None
        experiment_id = mlflow.create_experiment(experiment, artifact_location=place)
    else:
        experiment_id = mlflow_experiment.experiment_id
    if not experiment_id:  # a proxy's empty answer of status 200
        raise TrackingError(f"tracking: the store at {redacted(uri)!r} gave the experiment {experiment!r} no id")
    if mlflow_experiment is not None and mlflow_experiment.lifecycle_stage != "active":
        restore = f"MLFLOW_TRACKING_URI={redacted(uri)} mlflow experiments restore -x {experiment_id}"
        raise TrackingError(f"tracking.experiment: read {experiment!r}, which was deleted; name another, or: {restore}")
    return mlflow, uri, str(experiment_id)


def another(uri: str) -> Any:
    """Return another client of a store that `connect` has opened in some process. uri: its full URI."""
    client_class = _client_class()
    prepare_environment(served=scheme(uri) in ("http", "https"))
    if scheme(uri) == "sqlite":
        sqlite_file.defer_syncs(sqlite_path(uri))
    mlflow = client_class(uri)
    mlflow.search_experiments(max_results=1)  # connects
    return mlflow


def sync(uri: str) -> None:
    """Wait until the disk has what a SQLite store has taken; other stores wait by themselves. Raises OSError."""
    if scheme(uri) == "sqlite":
        sqlite_file.sync(sqlite_path(uri))


def _try_database(uri: str) -> None:
    """Log in to the database once: MLflow itself repeats a failing login for minutes before it gives up."""
    import sqlalchemy

    engine = sqlalchemy.create_engine(uri, poolclass=sqlalchemy.pool.NullPool)
    with engine.connect() as connection:
        sqlalchemy.inspect(connection).get_table_names()


@contextmanager
def _alone(uri: str) -> Iterator[None]:
    """Hold a lock on a SQLite store: two processes that create the schema together break it."""
    if scheme(uri) != "sqlite":
        yield
        return
    import fcntl

    path = sqlite_path(uri)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(path.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def prepare_environment(*, served: bool) -> None:
    """Set defaults of the environment variables that MLflow reads; the user's own values stay.

    served: whether the store is an MLflow server.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    if served:
        # MLflow repeats a request for minutes; the writer repeats by itself, and must notice soon. Uploads have more
        # time (`upload_time`).
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")


def fault(uri: str, error: BaseException) -> TrackingError:
    """Return a failure as an error of one line without secrets: Refused if a retry cannot help, else TrackingError."""
    if isinstance(error, TrackingError):
        return error
    kind = Refused if _final(error) else TrackingError
    text = cleaned(one_line(_root(error)), uri)
    advice = "check the URI and the rights of its user" if kind is Refused else "is it running, and within reach?"
    if DAMAGED in text:
        advice = "put a copy in its place, or move it away: what waits is delivered then"
    return kind(f"tracking: the store at {redacted(uri)!r} failed: {text}; {advice}")


def is_missing(error: Exception) -> bool:
    """Return whether MLflow itself says that it has no such run; a proxy's 404 has another code."""
    return getattr(error, "error_code", None) in ("RESOURCE_DOES_NOT_EXIST", "NOT_FOUND")


def _final(error: BaseException) -> bool:
    """Return whether MLflow refused a request for good: an HTTP 4xx, or a database's or Python's error of that kind.

    401, 403, 408 and 429 are not final: waiting writes can be delivered once the credentials are right, for example.
    Nor is what a proxy answers in the place of its server, which may be there again soon.
    """
    root = _root(error)
    if type(root).__module__.startswith("sqlalchemy"):
        from sqlalchemy import exc

        lost = isinstance(root, exc.OperationalError | exc.InterfaceError | exc.TimeoutError)
        return not lost and DAMAGED not in str(root) and not getattr(root, "connection_invalidated", False)
    response = getattr(error, "response", None)
    if status := getattr(response, "status_code", None):  # requests.HTTPError, from an artifact store
        # A file stays too large for a proxy that says so.
        return int(status) == TOO_LARGE or (_is_final(int(status)) and _names_error(response))
    if hasattr(error, "get_http_status_code"):  # MlflowException
        return _is_final(int(error.get_http_status_code())) and _is_mlflows(error)
    if isinstance(error, OSError):
        return isinstance(error, PermissionError)
    # Whatever else an artifact store's client raises may pass: a lost connection, a busy store, credentials.
    return isinstance(error, FINAL) or type(error).__module__.partition(".")[0] in DATABASES


def _is_final(status: int) -> bool:
    return 400 <= status < 500 and status not in (401, 403, 408, 429)


def _is_mlflows(error: BaseException) -> bool:
    """Return whether an MlflowException is MLflow's own word, from its client or as JSON from its server.

    MLflow makes one of any other answer to a request, too, with these codes for its HTTP status.
    """
    content = getattr(error, "json", None)  # RestException
    if content is not None:
        return _is_mlflow_code(content.get("error_code"))
    return getattr(error, "error_code", None) not in CODES_OF_STATUS


def _names_error(response: Any) -> bool:
    """Return whether an HTTP response is MLflow's own: JSON with one of its error codes."""
    try:
        content = response.json()
    except (AttributeError, ValueError):  # of an artifact store's client, or a page
        return False
    return isinstance(content, dict) and _is_mlflow_code(content.get("error_code"))


def _is_mlflow_code(code: object) -> bool:
    """Return whether an error code is one of MLflow's names; a proxy may send the number of the HTTP status."""
    return isinstance(code, str) and code.isupper() and code != "ENDPOINT_NOT_FOUND"


def _root(error: BaseException) -> BaseException:
    """Return SQLAlchemy's error if MLflow wrapped one, else the error itself."""
    cause = error.__cause__
    if cause is not None and type(cause).__module__.startswith("sqlalchemy"):
        return cause
    return error


@cache
def run_tags() -> Mapping[str, str]:
    """Return MLflow's own tags for the user and the program that began a run."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = "unknown"
    return {"mlflow.user": user, "mlflow.source.name": "raygpu"}
