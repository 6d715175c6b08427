"""Findings about GPUs, libraries and tracking servers, of machines that are not this one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from packaging.requirements import Requirement

from raygpu.devices.nvml import Gpu
from raygpu.workflow import diagnosis
from raygpu.workflow.diagnosis import Unusable, driver, mps_use, releases, tensorflow_build, torch_build, tracking_store

H100 = Gpu(0, "GPU-1", "NVIDIA H100", 79.6, (9, 0), "default", False)
OLD = Gpu(1, "GPU-2", "Tesla K80", 11.2, (3, 7), "default", None)
CUDA = {"version": "2.13.0", "cuda": "13.0", "gpus": 1, "available": True, "architectures": ["sm_80", "sm_90"]}


def test_driver() -> None:
    assert driver([], None, None).state == "warning"
    assert driver([], "580.1", "13.0").state == "failure"
    check = driver([H100], "580.1", "13.0")
    assert (check.state, check.finding) == ("ok", "580.1, CUDA 13.0; 0 NVIDIA H100 (80 GiB)")


@pytest.mark.parametrize(
    ("gpus", "told", "state", "finding", "mend"),
    [
        ([H100], CUDA, "ok", "2.13.0, built for CUDA 13.0, uses 1 of 1 GPUs", ""),
        ([H100, OLD], CUDA, "failure", "Tesla K80 (compute capability 3.7) is too old", "no wheel"),
        ([H100], CUDA | {"cuda": None, "available": False}, "failure", "is built without CUDA", "pip install 'torch"),
        ([H100], CUDA | {"available": False}, "failure", "cannot use CUDA", "the driver runs CUDA up to 12.4; update"),
        ([], CUDA | {"cuda": None, "available": False}, "ok", "2.13.0, built for the CPU", ""),
        ([], None, "warning", "not installed", "pip install 'raygpu[torch]'"),
        ([], Unusable("no libc"), "failure", "cannot be imported: no libc", "pip install"),
    ],
)
def test_torch(
    gpus: list[Gpu], told: object, state: str, finding: str, mend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    check = torch_build(gpus, told, "12.4")  # type: ignore[arg-type]
    assert check.state == state
    assert finding in check.finding
    assert mend in (check.mend or "")


def test_hidden_gpus_are_no_fault_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    check = torch_build([H100], CUDA | {"available": False}, "13.0")
    assert check.state == "warning"
    assert "CUDA_VISIBLE_DEVICES=''" in check.finding


def test_tensorflow() -> None:
    assert tensorflow_build([H100], None).state == "ok"
    assert tensorflow_build([H100], {"version": "2.21.0", "gpus": 0}).state == "warning"
    assert tensorflow_build([H100], {"version": "2.21.0", "gpus": 1}).state == "ok"
    assert tensorflow_build([], {"version": "2.21.0", "gpus": 0}).state == "ok"
    assert tensorflow_build([], Unusable("x")).state == "failure"


def test_mps(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mps_use([]).state == "ok"
    monkeypatch.setattr("raygpu.devices.mps.refusal", lambda uuid: "WSL2 has no CUDA MPS")
    assert mps_use([H100]).finding == "WSL2 has no CUDA MPS"
    monkeypatch.setattr("raygpu.devices.mps.refusal", lambda uuid: None)
    assert mps_use([H100]).state == "ok"


def test_releases() -> None:
    (check,) = releases([Requirement("ray>=2.60"), Requirement("no-such-package>=1")])
    assert check.state == "ok"
    assert check.finding.startswith("ray 2.")
    (check,) = releases([Requirement("ray>=999"), Requirement("mlflow>=3")])
    assert (check.name, check.state, check.mend) == ("ray", "failure", "pip install 'ray>=999'")
    (check,) = releases(None)
    assert check.state == "warning"
    found = diagnosis._requirements()
    assert found is not None
    assert {"ray", "mlflow", "torch", "tensorflow"} <= {each.name for each in found}


@contextmanager
def serving(version: str) -> Iterator[str]:
    """An MLflow server of this version, as far as it is asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = version if self.path == "/version" else "{}"
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *arguments: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("version", "state", "finding"),
    [
        ("3.99.0", "ok", "answers, MLflow 3.99.0"),
        ("2.9.0", "warning", "runs MLflow 2.9.0, which lacks later security fixes"),
        ("<html>", "ok", "can be used"),
    ],
)
def test_a_server_tells_its_version(version: str, state: str, finding: str) -> None:
    with serving(version) as uri:
        check = tracking_store(uri)
    assert check.state == state
    assert finding in check.finding


def test_a_store_that_cannot_be_used_is_a_failure() -> None:
    check = tracking_store("mysql://me:secret@127.0.0.1:1/db")
    assert check.state == "failure"
    assert "secret" not in check.finding
