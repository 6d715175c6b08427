"""An MLflow server that tests may stop and start, and what trials report."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raygpu.errors import TrackingError
from raygpu.records.trial_writer import Kind
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import EpochResult, Trial
from raygpu.tracking import pending_writes
from raygpu.tracking.pending_writes import Pending, Write
from raygpu.tracking.runs import RunTree

START_S = 180


class Server:
    """An MLflow server in its own process group: it can be stopped, ended and started again at the same port."""

    def __init__(self, folder: Path, database: Path) -> None:
        self.folder, self.database, self.port = folder, database, free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        # What `mlflow server` starts after it has read its flags, without its second, equally slow, import.
        environment = {
            **os.environ,
            "_MLFLOW_SERVER_FILE_STORE": f"sqlite:///{self.database}",
            "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
            "_MLFLOW_SERVER_ARTIFACT_DESTINATION": str(self.folder / "artifacts"),
            "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        }
        command = [sys.executable, "-m", "uvicorn", "mlflow.server.fastapi_app:app", "--port", str(self.port)]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, env=environment, cwd=self.folder, stdout=log, stderr=log, start_new_session=True
            )

    def wait(self) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"{self.uri}/health", timeout=5):
                    return
            except OSError:
                assert self.process is not None
                assert self.process.poll() is None, (self.folder / "server.log").read_text()
                time.sleep(0.2)
        pytest.fail((self.folder / "server.log").read_text())

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def end(self) -> None:
        if self.process is not None:
            self._signal(signal.SIGCONT)
            self._signal(signal.SIGTERM)
            self.process.wait(30)
            self.process = None

    def _signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, number)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def trial(index: int, **hyperparameters: object) -> Trial:
    return Trial(Trial.name(index), seed=index, hyperparameters=hyperparameters or {"lr": 0.1, "hidden": 64})


def epoch(number: int, loss: float = 0.5) -> EpochResult:
    return EpochResult(number, {"train/loss": loss, "validation/accuracy": 0.9}, num_samples=1000, train_s=0.5)


def deliver(tree: RunTree, kind: Kind, trial_id: str, value: Any) -> str:
    """One write, as the writer's thread delivers it; the id of the trial's run."""
    pending = Pending()
    pending.add(Write(kind, trial_id, value, int(time.time() * 1000)))
    faults: list[TrackingError] = []
    pending_writes.deliver(tree, pending.batches[trial_id][0], lambda fault, *what: faults.append(fault))
    assert not faults
    return tree.children[trial_id].run_id


def start_trial(tree: RunTree, trial: Trial) -> str:
    return deliver(tree, "begin", trial.trial_id, trial)


def restart_trial(tree: RunTree, trial: Trial) -> str:
    return deliver(tree, "restart", trial.trial_id, trial)


def log_epochs(tree: RunTree, index: int, results: list[EpochResult]) -> None:
    deliver(tree, "epochs", Trial.name(index), results)


def end_trial(tree: RunTree, record: TrialRecord) -> None:
    deliver(tree, "end", record.trial.trial_id, record)


def children(tree: RunTree) -> dict[str, Any]:
    """The sweep's trials as the store has them now; two runs of one trial fail the test."""
    found: dict[str, Any] = {}
    for run in tree.mlflow.search_runs([tree.experiment_id], f"tags.`mlflow.parentRunId` = '{tree.run_id}'"):
        assert run.data.tags["raygpu.trial_id"] not in found
        found[run.data.tags["raygpu.trial_id"]] = run
    return found


def losses(tree: RunTree, run: Any) -> list[tuple[int, float]]:
    return [(p.step, p.value) for p in tree.mlflow.get_metric_history(run.info.run_id, "train/loss")]


def lose_first_run(tree: RunTree, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The first run that is asked for is begun, and the answer lost; returns the answers so far."""
    create, asked = tree.mlflow.create_run, list[Any]()

    def lost(*arguments: Any, **named: Any) -> Any:
        asked.append(create(*arguments, **named))
        if len(asked) == 1:
            raise ConnectionError("the answer was lost")
        return asked[-1]

    monkeypatch.setattr(tree.mlflow, "create_run", lost)
    return asked


def predicted_here(uri: str, model: str, inputs: Any) -> Any:
    """What a registered model of a store predicts in this process."""
    import mlflow

    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(uri)
    try:
        return mlflow.pyfunc.load_model(model).predict(inputs)
    finally:
        mlflow.set_tracking_uri(before)


def eventually(condition: Callable[[], object], timeout_s: float = 60) -> None:
    """Wait until a condition holds, and fail if it never does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.1)
