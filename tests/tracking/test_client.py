"""MLflow's client, where its import fails for a moment, and which faults are final."""

from __future__ import annotations

import errno
import http.client
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import alembic.util
import boto3.exceptions
import botocore.exceptions
import google.api_core.exceptions
import pytest
import sqlalchemy.exc
import urllib3
from mlflow.exceptions import MlflowException
from mlflow.protos import databricks_pb2

from raygpu.errors import TrackingError
from raygpu.tracking.client import Refused, fault, is_missing

FAILS_ONCE = """
import importlib.abc, sys
from raygpu.tracking.client import connect

class FailsOnce(importlib.abc.MetaPathFinder):
    left = 1

    def find_spec(self, name, path, target=None):
        if name == {module!r} and self.left:
            self.left = 0
            raise ImportError("half a module")

sys.meta_path.insert(0, FailsOnce())
client, uri, number = connect("sqlite:///store.db", "search")
print(FailsOnce.left, sys.meta_path[0].left, client.get_experiment(number).name)
"""


@pytest.mark.parametrize("module", ["requests", "mlflow.tracking._tracking_service.registry"])
def test_an_import_that_fails_for_a_moment_is_done_anew(module: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAILS_ONCE.format(module=module)],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.stdout.split() == ["1", "0", "search"], done.stderr


class AzureError(Exception):
    """An error of a client for an artifact store of which raygpu knows nothing, as azure.core.exceptions.AzureError."""

    response: object = None


@pytest.mark.parametrize(
    ("error", "final"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (OSError(errno.ESTALE, "Stale file handle"), False),
        (botocore.exceptions.EndpointConnectionError(endpoint_url="http://minio:9000"), False),
        (boto3.exceptions.S3UploadFailedError("An error occurred (503): SlowDown"), False),
        (google.api_core.exceptions.ServiceUnavailable("503 Service Unavailable"), False),
        (urllib3.exceptions.ProtocolError("Connection aborted."), False),
        (urllib3.exceptions.ReadTimeoutError(urllib3.HTTPConnectionPool("gcs"), "/", "Read timed out."), False),
        (aiohttp.ServerDisconnectedError(), False),
        (http.client.IncompleteRead(b""), False),
        (AzureError("ServiceRequestError: connection timed out"), False),
        (MemoryError(), False),
        (PermissionError(errno.EACCES, "Permission denied"), True),
        (ValueError("no such artifact"), True),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"), True),
        (KeyError("endpoint"), True),
        (ModuleNotFoundError("No module named 'google.cloud.storage'"), True),
        (sqlite3.DatabaseError("file is not a database"), True),
        (sqlalchemy.exc.DataError("INSERT", {}, ValueError("invalid byte sequence")), True),
        (sqlalchemy.exc.OperationalError("INSERT", {}, ValueError("database is locked")), False),
        (sqlalchemy.exc.DatabaseError("INSERT", {}, ValueError("database disk image is malformed")), False),
        (alembic.util.CommandError("Can't locate revision identified by 'abc'"), True),
        (MlflowException("Invalid value", databricks_pb2.INVALID_PARAMETER_VALUE), True),
        (MlflowException("Bad gateway", databricks_pb2.TEMPORARILY_UNAVAILABLE), False),
        (TrackingError("tracking: a process that writes to the store has ended"), False),
    ],
)
def test_what_may_be_mended_is_tried_again(error: Exception, final: bool) -> None:
    assert isinstance(fault("sqlite:///runs/mlflow.db", error), Refused) == final


def test_a_response_without_json_is_not_mlflow_s() -> None:
    error = AzureError("ContainerNotFound")
    error.response = SimpleNamespace(status_code=404)
    assert not isinstance(fault("http://mlflow", error), Refused)


@pytest.mark.parametrize(
    ("code", "missing"), [("RESOURCE_DOES_NOT_EXIST", True), ("NOT_FOUND", True), ("ENDPOINT_NOT_FOUND", False)]
)
def test_mlflow_s_own_codes_alone_say_that_a_run_is_gone(code: str, missing: bool) -> None:
    assert is_missing(MlflowException("no such run", getattr(databricks_pb2, code))) is missing
