"""Another process that writes to the store: what it writes, its refusals, and its end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import pytest

from raygpu.errors import TrackingError
from raygpu.search.scoring import TrialScores
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import Trial
from raygpu.tracking.runs import Refused, RunTree
from raygpu.tracking.store_process import StoreProcess
from raygpu.tracking.values import MetricValue
from tests.tracking.services import children, end_trial, epoch, eventually, log_epochs, start_trial

START_S = 60.0


@contextmanager
def started(tree: RunTree) -> Iterator[StoreProcess]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [Path("/nowhere"), *sys.path])  # as notebooks do, though Python takes text alone
        found = StoreProcess(tree.uri)
    yield found
    found.close()


@pytest.fixture
def process(tree: RunTree) -> Iterator[StoreProcess]:
    with started(tree) as found:
        yield found


@pytest.fixture(scope="module")
def staying(
    new_store: Callable[[Path], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunTree, StoreProcess]]:
    """A tree and a process for it that stay for the next test: a start takes seconds."""
    tree = RunTree.open(new_store(tmp_path_factory.mktemp("staying")), "digits")
    tree.start_run("sweep", {}, {})
    with started(tree) as found:
        yield tree, found


def other(tree: RunTree, process: StoreProcess) -> RunTree:
    """The tree, written by the process."""
    assert process.ready(START_S)
    written = copy(tree)
    written.mlflow = process
    return written


def of_repeat(number: int) -> Trial:
    return Trial(f"t{number:04d}", 7, {"lr": 0.1, "note": "a\0b", "layers": (1, 2)}, repeat=number, fold=1)


def content(tree: RunTree, run: Any) -> dict[str, Any]:
    """All that the store has of a run but for its own times and ids."""
    own = {"raygpu.trial_id", "raygpu.repeat", "mlflow.runName", "raygpu.set"}
    history = {name: tree.mlflow.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    return {
        "params": run.data.params,
        "metrics": {name: repr(value) for name, value in run.data.metrics.items()},
        "history": {name: [(point.step, repr(point.value)) for point in each] for name, each in history.items()},
        "tags": {name: value for name, value in run.data.tags.items() if name not in own},
        "status": run.info.status,
        "has_times": run.info.start_time <= run.info.end_time,
    }


def test_another_process_writes_a_trial_s_run_as_this_one_does(staying: tuple[RunTree, StoreProcess]) -> None:
    tree, process = staying
    for number, writing in enumerate((tree, other(tree, process))):
        trial = of_repeat(number)
        start_trial(writing, trial)
        log_epochs(writing, number, [epoch(1, 0.5), epoch(2, float("nan")), epoch(3, float("inf"))])
        record = TrialRecord(trial, "failed", error="Traceback", rgu_hours=0.5, scores=TrialScores(last_epoch=3))
        end_trial(writing, record)
    runs = children(tree)
    assert content(tree, runs["t0000"]) == content(tree, runs["t0001"])
    assert [step for step, _ in content(tree, runs["t0001"])["history"]["train/loss"]] == [1, 2, 3]
    assert runs["t0001"].data.tags["raygpu.repeat"] == "2"
    text = Path(tree.mlflow.download_artifacts(runs["t0001"].info.run_id, "error.txt")).read_text()
    assert text == "Traceback"
    assert process.cpu_s > 0


def test_what_the_store_refuses_another_process_is_refused(staying: tuple[RunTree, StoreProcess]) -> None:
    tree, process = staying
    run_id = start_trial(tree, of_repeat(2))
    written = other(tree, process)
    written.log(run_id, params={"lr": 0.1})
    with pytest.raises(Refused, match="Changing param values"):
        written.log(run_id, params={"lr": 0.2})
    tree.mlflow.delete_run(run_id)
    with pytest.raises(Refused):
        written.log(run_id, [MetricValue("loss", 0.5, 1, 1)])
    written.forget_trial("t0002")  # deleted already
    assert "t0002" not in tree.children
    assert not process.is_lost


def test_a_process_that_is_killed_is_lost(tree: RunTree, process: StoreProcess) -> None:
    written = other(tree, process)
    os.kill(process.pid, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(TrackingError, match="a process that writes to the store has ended") as caught:
            written.create_trial(of_repeat(0))
        assert not isinstance(caught.value, Refused), "another process may take it"
    assert process.is_lost
    assert not process.ready(0)


def test_a_process_that_cannot_open_the_store_takes_no_calls(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    process = StoreProcess(f"sqlite:///{tmp_path}/file/mlflow.db")
    assert not process.ready(START_S)
    assert process.is_lost
    process.close()


def test_the_store_s_address_is_not_among_the_process_arguments(staying: tuple[RunTree, StoreProcess]) -> None:
    _, process = staying
    assert "mlflow.db" not in Path(f"/proc/{process.pid}/cmdline").read_text()


def test_the_process_ends_with_its_other_side(tree: RunTree, process: StoreProcess) -> None:
    assert process.ready(START_S)
    process._pipe.close()
    eventually(lambda: process._process.poll() is not None)
