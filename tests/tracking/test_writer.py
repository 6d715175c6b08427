from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raygpu.errors import TrackingError
from raygpu.search.trial_record import TrialRecord
from raygpu.tracking.journal import load
from raygpu.tracking.null_writer import NullWriter
from raygpu.tracking.runs import RunTree
from raygpu.tracking.writer import Writer
from tests.tracking.proxy import proxied
from tests.tracking.services import (
    Server,
    children,
    epoch,
    eventually,
    free_port,
    log_epochs,
    lose_first_run,
    losses,
    start_trial,
    trial,
)


def test_what_is_given_arrives_and_callers_do_not_wait(tree: RunTree, tmp_path: Path) -> None:
    given = threading.Event()

    def opened() -> RunTree:
        given.wait()
        return tree

    writer = Writer(opened, tmp_path / "spool.jsonl", interval_s=0.1)
    for index in range(8):
        writer.begin(trial(index))
        writer.place(f"t{index:04d}", 0, 0.25)
        for number in range(1, 6):
            writer.epochs(f"t{index:04d}", [epoch(number, loss=number)])
        writer.end(TrialRecord(trial(index), "failed" if index == 7 else "finished", error="Traceback"))
    writer.run_metrics(1, {"gpu/0/samples_per_s": 100.0})
    writer.run_metrics(2, {"gpu/0/samples_per_s": 200.0})
    given.set()  # a caller that waits for the store would never come here
    assert writer.ready(60) is tree
    assert writer.close(60) == 0
    assert (writer.faults, writer.delayed) == ([], None)
    assert not (tmp_path / "spool.jsonl").exists()
    runs = children(tree)
    assert len(runs) == 8
    assert {name: run.info.status for name, run in runs.items() if run.info.status != "FINISHED"} == {"t0007": "FAILED"}
    assert losses(tree, runs["t0003"]) == [(number, number) for number in range(1, 6)]
    assert runs["t0003"].data.tags["raygpu.gpu_index"] == "0"
    assert runs["t0003"].data.tags["raygpu.gpu_share"] == "0.25"
    assert runs["t0003"].data.params == {"lr": "0.1", "hidden": "64"}
    history = tree.mlflow.get_metric_history(tree.run_id, "gpu/0/samples_per_s")
    assert [(p.step, p.value) for p in history] == [(1, 100.0), (2, 200.0)]


def test_a_retried_trial_does_not_log_twice(tree: RunTree, tmp_path: Path) -> None:
    writer = Writer(lambda: tree, tmp_path / "spool.jsonl", interval_s=0.1)
    writer.begin(trial(0))
    writer.epochs("t0000", [epoch(1, 1.0), epoch(2, 2.0)])
    eventually(lambda: writer.waiting == 0)
    writer.begin(trial(0))
    writer.epochs("t0000", [epoch(2, 99.0), epoch(3, 3.0)])
    assert writer.close(120) == 0
    assert losses(tree, children(tree)["t0000"]) == [(1, 1.0), (2, 2.0), (3, 3.0)]


@pytest.mark.parametrize("delivered_first", [True, False])
def test_a_trial_from_scratch_has_a_new_run(tree: RunTree, tmp_path: Path, delivered_first: bool) -> None:
    writer = Writer(lambda: tree, tmp_path / "spool.jsonl", interval_s=0.1 if delivered_first else 5)
    writer.begin(trial(0))
    writer.epochs("t0000", [epoch(1, 1.0), epoch(2, 2.0)])
    if delivered_first:
        eventually(lambda: writer.waiting == 0)
    writer.restart(trial(0))
    writer.epochs("t0000", [epoch(1, 5.0)])
    writer.end(TrialRecord(trial(0), "finished"))
    assert writer.close(120) == 0
    assert losses(tree, children(tree)["t0000"]) == [(1, 5.0)]


def test_after_a_resume_only_new_epochs_are_logged(tree: RunTree, tmp_path: Path) -> None:
    assert tree.run_id
    start_trial(tree, trial(0))
    log_epochs(tree, 0, [epoch(1, 1.0), epoch(2, 2.0)])
    again = RunTree.open(tree.uri, "digits")
    again.resume_run(tree.run_id)
    writer = Writer(lambda: again, tmp_path / "spool.jsonl", interval_s=0.1)
    writer.begin(trial(0))
    writer.epochs("t0000", [epoch(2, 99.0), epoch(3, 3.0)])
    assert writer.close(120) == 0
    assert losses(again, children(again)["t0000"]) == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_the_last_of_a_trials_results_counts_even_if_the_clock_was_set_back(
    tree: RunTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(tree: RunTree, now_s: float, scores: list[float], rgu_hours: float) -> dict[str, float]:
        """Write a trial's results at this time; return the metrics that MLflow shows."""
        monkeypatch.setattr(
            "raygpu.tracking.writer.time", SimpleNamespace(time=lambda: now_s, monotonic=time.monotonic)
        )
        writer = Writer(lambda: tree, tmp_path / "spool.jsonl", interval_s=0.1)
        writer.begin(trial(0))
        for score in scores:
            writer.metrics("t0000", {"set/score": score})
        writer.end(TrialRecord(trial(0), "finished", rgu_hours=rgu_hours))
        assert writer.close(120) == 0
        return dict(children(tree)["t0000"].data.metrics)

    assert write(tree, 2_000_000.0, [0.9, 0.5], 2.0) == {"set/score": 0.5, "rgu_hours": 2.0}
    assert tree.run_id
    again = RunTree.open(tree.uri, "digits")
    again.resume_run(tree.run_id)
    assert write(again, 1_000_000.0, [0.7, 0.3], 1.0) == {"set/score": 0.3, "rgu_hours": 1.0}


def test_a_store_that_cannot_be_opened_is_told_by_ready(tmp_path: Path) -> None:
    uri = f"http://127.0.0.1:{free_port()}"
    writer = Writer(lambda: RunTree.open(uri, "digits"), tmp_path / "spool.jsonl")
    writer.begin(trial(0))
    eventually(lambda: writer.delayed is not None)
    with pytest.raises(TrackingError, match="no answer"):
        writer.ready(0.1)
    assert writer.close(1) == 1
    assert [write.kind for write in load(tmp_path / "spool.jsonl")[0]] == ["begin"]


def test_ready_does_not_wait_for_ever(tree: RunTree, tmp_path: Path) -> None:
    gate = threading.Event()

    def late() -> RunTree:
        gate.wait(60)
        return tree

    writer = Writer(late, tmp_path / "spool.jsonl")
    with pytest.raises(TrackingError, match=r"not ready after 0.1 s"):
        writer.ready(0.1)
    gate.set()
    assert writer.ready(60) is tree
    assert writer.close(120) == 0


def test_an_unexpected_fault_is_noted_and_ends_nothing(
    tree: RunTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = tree.create_trial

    def broken(wanted: Any, *arguments: Any) -> str:
        if wanted.trial_id == "t0000":
            raise ZeroDivisionError("ours")
        return create(wanted, *arguments)

    monkeypatch.setattr(tree, "create_trial", broken)
    writer = Writer(lambda: tree, tmp_path / "spool.jsonl", interval_s=0.1)
    writer.begin(trial(0))
    writer.begin(trial(1))
    assert writer.close(120) == 0
    assert set(children(tree)) == {"t0001"}
    assert writer.faults == ["MLflow refused: tracking: a write was dropped: ZeroDivisionError: ours"]


def slowly(tree: RunTree, monkeypatch: pytest.MonkeyPatch, clock_s: float, real_s: float = 0.05) -> None:
    """Each call that writes metrics takes that long: by the writer's clock, which moves in these calls alone, and in
    fact."""
    send, now = tree.mlflow.log_batch, [1000.0]

    def slow(*arguments: Any) -> None:
        now[0] += clock_s
        time.sleep(real_s)
        send(*arguments)

    monkeypatch.setattr(tree.mlflow, "log_batch", slow)
    clock = SimpleNamespace(monotonic=lambda: now[0], time=time.time, thread_time=time.thread_time)
    monkeypatch.setattr("raygpu.tracking.writer.time", clock)


def test_a_slow_store_is_waited_for_as_long_as_it_takes_writes(
    tree: RunTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slowly(tree, monkeypatch, 40.0)
    writer, said = Writer(lambda: tree, tmp_path / "spool.jsonl", interval_s=0.05), list[str]()
    for index in range(4):
        writer.begin(trial(index))
        writer.epochs(f"t{index:04d}", [epoch(1, 1.0)])
        writer.end(TrialRecord(trial(index), "finished"))
    assert writer.close(60, said.append) == 0, "each call takes less, all of them take more"
    assert {run.info.status for run in children(tree).values()} == {"FINISHED"}
    assert len(children(tree)) == 4
    assert any("runs are still to be delivered, " in line and "a second" in line for line in said), said


def test_one_run_with_much_to_write_is_progress_too(
    tree: RunTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slowly(tree, monkeypatch, 40.0)
    writer = Writer(lambda: tree, tmp_path / "spool.jsonl", interval_s=0.05)
    writer.begin(trial(0))
    writer.epochs("t0000", [epoch(number, float(number)) for number in range(1, 1201)])
    assert writer.close(60) == 0
    assert len(losses(tree, children(tree)["t0000"])) == 1200


def test_what_is_written_again_and_again_is_no_progress(
    tree: RunTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any, **named: Any) -> None:
        raise ConnectionError("no file is taken")

    monkeypatch.setattr(tree.mlflow, "log_text", broken)
    writer = Writer(lambda: tree, tmp_path / "spool.jsonl", interval_s=0.05)
    writer.begin(trial(0))
    writer.end(TrialRecord(trial(0), "failed", error="Traceback"))
    assert writer.close(1) == 2


def test_a_locked_file_is_given_up_and_delivered_by_the_next_writer(
    tree: RunTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raygpu.tracking.writer.SAY_S", 0.3)
    spool, said = tmp_path / "spool.jsonl", list[str]()
    with closing(sqlite3.connect(tmp_path / "mlflow.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        writer = Writer(lambda: tree, spool, interval_s=0.05)
        writer.begin(trial(0))
        writer.epochs("t0000", [epoch(1, 1.0)])
        assert writer.close(1, said.append) == 2
        other.execute("ROLLBACK")
    assert "the store has taken none for" in said[-1]
    assert len(load(spool)[0]) == 2
    eventually(lambda: not writer._thread.is_alive())  # its last call may yet succeed
    again = RunTree.open(tree.uri, "digits")
    again.resume_run(str(tree.run_id))
    assert Writer(lambda: again, spool, interval_s=0.05).close(120) == 0
    assert losses(again, children(again)["t0000"]) == [(1, 1.0)]


def test_ctrl_c_ends_the_waiting_and_loses_nothing(
    tree: RunTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slowly(tree, monkeypatch, 40.0, real_s=1.0)

    def pressed(line: str) -> None:
        raise KeyboardInterrupt

    writer = Writer(lambda: tree, tmp_path / "spool.jsonl", interval_s=0.05)
    for index in range(3):
        writer.begin(trial(index))
    assert writer.close(60, pressed) > 0
    assert writer.interrupted
    assert load(tmp_path / "spool.jsonl")[0]


def test_without_tracking_nothing_happens() -> None:
    writer, real = NullWriter(), {name for name in dir(Writer) if not name.startswith("_")}
    assert real <= {name for name in dir(writer) if not name.startswith("_")}
    writer.begin(trial(0))
    writer.end(TrialRecord(trial(0)))
    writer.ready(1)
    assert (writer.close(1), writer.waiting, writer.faults) == (0, 0, [])


def test_nothing_is_lost_or_doubled_while_a_server_hangs(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = RunTree.open(server.uri, "hanging")
    tree.start_run("sweep", {}, {})
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    writer = Writer(lambda: tree, tmp_path / "spool.jsonl", interval_s=0.2)
    writer.begin(trial(0))
    writer.epochs("t0000", [epoch(1, 1.0)])
    eventually(lambda: writer.waiting == 0)
    server.pause()
    try:
        writer.epochs("t0000", [epoch(2, 2.0)])
        writer.begin(trial(1))  # asked for while nobody answers: the answer is lost, the run is not
        eventually(lambda: writer.delayed is not None)
        writer.epochs("t0001", [epoch(1, 1.0)])
        writer.epochs("t0000", [epoch(3, 3.0)])
        time.sleep(1)
    finally:
        server.go_on()
    writer.end(TrialRecord(trial(0), "finished"))
    assert writer.close(60) == 0
    assert (writer.faults, writer.delayed) == ([], None)
    runs = children(tree)
    assert losses(tree, runs["t0000"]) == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert losses(tree, runs["t0001"]) == [(1, 1.0)]
    assert runs["t0000"].info.status == "FINISHED"


def test_what_a_killed_process_had_not_delivered_is_delivered_by_the_next(tree: RunTree, tmp_path: Path) -> None:
    assert tree.run_id
    spool = tmp_path / "spool.jsonl"
    writer = Writer(lambda: tree, spool, interval_s=0.1)
    writer.begin(trial(0))
    writer.epochs("t0000", [epoch(1, 1.0)])
    eventually(lambda: spool.read_text() == "")
    assert writer.close(120) == 0
    killed = Writer(lambda: tree, spool, interval_s=600)  # it delivers nothing before the test is over
    killed.epochs("t0000", [epoch(2, 2.0), epoch(3, 3.0)])
    killed.end(TrialRecord(trial(0), "finished"))
    killed.begin(trial(1))
    with spool.open("a") as file:
        file.write('{"kind": "be')  # the process was killed here

    again = RunTree.open(tree.uri, "digits")
    again.resume_run(tree.run_id)
    following = Writer(lambda: again, spool, interval_s=0.1)
    assert following.num_earlier == 3
    following.epochs("t0001", [epoch(1, 1.0)])
    assert following.close(120) == 0
    runs = children(again)
    assert losses(again, runs["t0000"]) == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert runs["t0000"].info.status == "FINISHED"
    assert runs["t0001"].info.status == "RUNNING"
    assert losses(again, runs["t0001"]) == [(1, 1.0)]
    assert not spool.exists()


def test_a_lost_answer_makes_no_second_run(tree: RunTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = lose_first_run(tree, monkeypatch)
    writer = Writer(lambda: tree, tmp_path / "spool.jsonl", interval_s=0.1)
    writer.begin(trial(0))
    writer.epochs("t0000", [epoch(1, 1.0)])
    assert writer.close(120) == 0
    assert len(asked) == 1
    assert losses(tree, children(tree)["t0000"]) == [(1, 1.0)]


def test_what_a_lost_server_missed_is_delivered_on_resume(server: Server, tmp_path: Path) -> None:
    """While it is lost, nobody listens at its port."""
    spool = tmp_path / "run" / "spool.jsonl"
    with proxied(server.uri) as proxy:
        tree = RunTree.open(proxy.uri, "lost")
        parent = tree.start_run("sweep", {}, {})
        writer = Writer(lambda: tree, spool, interval_s=0.1)
        writer.begin(trial(0))
        writer.epochs("t0000", [epoch(1, 1.0)])
        eventually(lambda: writer.waiting == 0)
    writer.epochs("t0000", [epoch(2, 2.0)])
    writer.end(TrialRecord(trial(0), "finished"))
    writer.begin(trial(1, lr=0.5))
    writer.epochs("t0001", [epoch(1, 1.5)])
    writer.run_metrics(9, {"gpu/0/samples_per_s": 5.0})
    given_ms = time.time() * 1000
    assert writer.close(1) == 5
    assert Writer(lambda: tree, spool, interval_s=0.1).close(0.5) == 5
    assert len(load(spool)[0]) == 5
    with proxied(server.uri, proxy.port):
        again = RunTree.open(proxy.uri, "lost")
        again.resume_run(parent)
        assert Writer(lambda: again, spool, interval_s=0.1).close(120) == 0
        assert not spool.exists()
        assert Writer(lambda: again, spool).num_earlier == 0
        runs = children(again)
        assert losses(again, runs["t0000"]) == [(1, 1.0), (2, 2.0)]
        assert runs["t0000"].info.status == "FINISHED"
        assert runs["t0000"].info.end_time <= given_ms
        assert losses(again, runs["t0001"]) == [(1, 1.5)]
        assert runs["t0001"].data.params == {"lr": "0.5"}
        assert [p.step for p in again.mlflow.get_metric_history(parent, "gpu/0/samples_per_s")] == [9]
