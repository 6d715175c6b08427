"""What a proxy before MLflow's server says while the server is away is no word of MLflow's."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from raygpu.errors import TrackingError
from raygpu.search.trial_record import TrialRecord
from raygpu.tracking.client import Refused
from raygpu.tracking.kept_writes import REFUSED
from raygpu.tracking.rewriting import has_run
from raygpu.tracking.runs import RunTree
from raygpu.tracking.writer import Writer
from tests.tracking import proxy as answers
from tests.tracking.proxy import Answer, proxied
from tests.tracking.services import Server, children, epoch, eventually, losses, trial

AWAY = ["NO_ROUTE", "NO_SERVICE", "NUMBERED", "NO_POD", "BAD_GATEWAY", "LOGIN", "CONFLICT"]
FILES = "/api/2.0/mlflow-artifacts"


@pytest.mark.parametrize("name", ["NO_ROUTE", "NUMBERED", "LOGIN", "CONFLICT"])
def test_a_proxys_answer_loses_no_write(name: str, server: Server, tmp_path: Path) -> None:
    answer: Answer = getattr(answers, name)
    with proxied(server.uri) as proxy:
        tree = RunTree.open(proxy.uri, "digits")
        tree.start_run(f"sweep-{name}", {}, {})
        writer = Writer(lambda: tree, tmp_path / "spool.jsonl", interval_s=0.1)
        writer.begin(trial(0))
        writer.epochs("t0000", [epoch(1, 1.0)])
        eventually(lambda: writer.waiting == 0)
        proxy.answer = answer
        writer.epochs("t0000", [epoch(2, 2.0)])
        writer.begin(trial(1))  # a run that cannot be begun
        writer.epochs("t0001", [epoch(1, 3.0)])
        eventually(lambda: writer.delayed is not None)
        proxy.answer = None
        writer.epochs("t0001", [epoch(2, 4.0)])
        for index in range(2):
            writer.end(TrialRecord(trial(index), "finished"))
        assert writer.close(60) == 0
        assert (writer.faults, writer.num_refused) == ([], 0)
        assert not (tmp_path / REFUSED).exists()
        runs = children(tree)
        assert {each: run.info.status for each, run in runs.items()} == {"t0000": "FINISHED", "t0001": "FINISHED"}
        assert losses(tree, runs["t0000"]) == [(1, 1.0), (2, 2.0)]
        assert losses(tree, runs["t0001"]) == [(1, 3.0), (2, 4.0)]


def test_a_proxys_answer_says_nothing_about_a_run(server: Server, tmp_path: Path) -> None:
    with proxied(server.uri) as proxy:
        tree = RunTree.open(proxy.uri, "digits")
        tree.patience_s = 0
        run_id = tree.start_run("asked", {}, {})
        calls = [
            ("/", lambda: has_run(tree, run_id)),
            ("/", lambda: tree.create_trial(trial(0))),
            (FILES, lambda: tree.log_text(run_id, "Traceback", "error.txt")),
        ]
        for name, (path, call) in product(AWAY, calls):
            if name == "LOGIN" and path == FILES:
                continue  # MLflow's client takes any answer of status 200 to a file for a success
            proxy.answer, proxy.path = getattr(answers, name), path
            with pytest.raises(TrackingError) as fault:
                call()
            assert not isinstance(fault.value, Refused)
        proxy.answer = answers.TOO_LARGE
        with pytest.raises(Refused):
            tree.log_text(run_id, "Traceback", "error.txt")
        proxy.path = "/"
        proxy.answer = answers.NOTHING
        with pytest.raises(TrackingError, match="no id"):
            tree.create_trial(trial(0))
        with pytest.raises(TrackingError, match="no id"):
            tree.start_run("begun", {}, {})
        proxy.path = "/api/2.0/mlflow/experiments/get-by-name"
        with pytest.raises(TrackingError, match="gave the experiment 'digits' no id"):
            RunTree.open(proxy.uri, "digits")
        proxy.answer = None
        assert tree.children == {}
        with pytest.raises(Refused):
            tree.log("0" * 32, tags={"a": "b"})
        assert has_run(tree, run_id)
        tree.mlflow.delete_run(run_id)
        assert not has_run(tree, run_id)
        assert not has_run(tree, "0" * 32)
