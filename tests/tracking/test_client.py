"""MLflow's client, where its import fails for a moment, and which faults are final."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import boto3.exceptions
import botocore.exceptions
import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos import databricks_pb2

from raygpu.errors import TrackingError
from raygpu.tracking.client import Refused, fault, is_missing

FAILS_ONCE = """
import importlib.abc, sys
from pathlib import Path
from raygpu.tracking.client import connect

class FailsOnce(importlib.abc.MetaPathFinder):
    left = 1

    def find_spec(self, name, path, target=None):
        if name == {module!r} and self.left:
            self.left = 0
            raise ImportError("half a module")

sys.meta_path.insert(0, FailsOnce())
client, uri, number = connect("sqlite:///store.db", "search", Path("artifacts"))
print(FailsOnce.left, sys.meta_path[0].left, client.get_experiment(number).name)
"""


@pytest.mark.parametrize("module", ["requests", "mlflow.tracking._tracking_service.registry"])
def test_an_import_that_fails_for_a_moment_is_done_anew(module: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAILS_ONCE.format(module=module)],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.stdout.split() == ["1", "0", "search"], done.stderr


@pytest.mark.parametrize(
    ("error", "final"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (OSError(errno.ESTALE, "Stale file handle"), False),
        (botocore.exceptions.EndpointConnectionError(endpoint_url="http://minio:9000"), False),
        (boto3.exceptions.S3UploadFailedError("An error occurred (503): SlowDown"), False),
        (PermissionError(errno.EACCES, "Permission denied"), True),
        (ValueError("no such artifact"), True),
        (TrackingError("tracking: a process that writes to the store has ended"), False),
    ],
)
def test_what_may_be_mended_is_tried_again(error: Exception, final: bool) -> None:
    assert isinstance(fault("sqlite:///runs/mlflow.db", error), Refused) == final


@pytest.mark.parametrize(
    ("code", "missing"), [("RESOURCE_DOES_NOT_EXIST", True), ("NOT_FOUND", True), ("ENDPOINT_NOT_FOUND", False)]
)
def test_mlflow_s_own_codes_alone_say_that_a_run_is_gone(code: str, missing: bool) -> None:
    assert is_missing(MlflowException("no such run", getattr(databricks_pb2, code))) is missing
