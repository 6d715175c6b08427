"""How many calls and SQL statements a sweep costs, when runs are written to, and several at once."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from sqlalchemy import Engine, event

from raygpu.search.trial_record import TrialRecord
from raygpu.tracking import deliverer, kept_writes
from raygpu.tracking.deliverer import Deliverer
from raygpu.tracking.journal import load
from raygpu.tracking.pending_writes import Pending, Write
from raygpu.tracking.runs import RunTree
from raygpu.tracking.store_process import StoreProcess
from raygpu.tracking.writer import CpuLimit, Writer
from tests.tracking.services import children, epoch, eventually, losses, trial

NUM_TRIALS = 24
FEW, CROWD = 12, 4
"""Runs that wait beside other processes, and how many are a crowd there."""
CALLS = ("create_run", "log_batch", "set_terminated", "update_run", "get_run", "search_runs", "set_tag", "log_text")
STATEMENTS = 21
"""Largest number of SQL statements for a run, without its connections' settings: 5 to begin it, 11 for its parameters,
metrics and tags, 5 for its end."""


@pytest.fixture
def calls(tree: RunTree, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The number of calls of MLflow's client, by name."""
    counted: Counter[str] = Counter()

    def count(name: str) -> None:
        call = getattr(tree.mlflow, name)

        def counting(*arguments: Any, **named: Any) -> Any:
            counted[name] += 1
            return call(*arguments, **named)

        monkeypatch.setattr(tree.mlflow, name, counting)

    for name in CALLS:
        count(name)
    return counted


@pytest.fixture
def statements() -> Iterator[list[str]]:
    """The SQL statements so far, but for settings of connections."""
    told: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if not statement.startswith("PRAGMA"):
            told.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    yield told
    event.remove(Engine, "before_cursor_execute", note)


def test_a_sweep_costs_three_calls_a_trial(
    tree: RunTree, tmp_path: Path, calls: Counter[str], statements: list[str]
) -> None:
    """Also where trials begin, report and end in different turns."""
    writer = Writer(lambda: tree, tmp_path / "journal.jsonl", interval_s=0.05)
    for index in range(NUM_TRIALS):
        writer.begin(trial(index))
        writer.place(f"t{index:04d}", 0, 0.1)
    eventually(lambda: calls["create_run"] == NUM_TRIALS)
    for number in range(1, 6):
        for index in range(NUM_TRIALS):
            writer.epochs(f"t{index:04d}", [epoch(number)])
        threading.Event().wait(0.15)
    for index in range(NUM_TRIALS):
        writer.end(TrialRecord(trial(index), "finished"))
    assert writer.close(60) == 0
    assert calls == {"create_run": NUM_TRIALS, "log_batch": NUM_TRIALS, "set_terminated": NUM_TRIALS}
    assert len(statements) <= STATEMENTS * NUM_TRIALS
    runs = children(tree)
    assert len(runs) == NUM_TRIALS
    for run in runs.values():
        assert run.info.status == "FINISHED"
        assert run.data.params == {"lr": "0.1", "hidden": "64"}
        assert run.data.tags["raygpu.status"] == "finished"
        assert [step for step, _ in losses(tree, run)] == [1, 2, 3, 4, 5]


def test_a_trial_that_is_over_at_once_sends_its_tags_with_its_run(
    tree: RunTree, tmp_path: Path, calls: Counter[str], statements: list[str]
) -> None:
    writer = Writer(lambda: tree, tmp_path / "journal.jsonl", interval_s=5)
    writer.begin(trial(0))
    writer.epochs("t0000", [epoch(1)])
    writer.end(TrialRecord(trial(0), "finished"))
    assert writer.close(120) == 0
    assert calls == {"create_run": 1, "log_batch": 1, "set_terminated": 1}
    assert [each for each in statements if each.startswith("INSERT INTO tags")] != []
    assert not any("tags.key IN" in each or 'tags."key" IN' in each for each in statements), "no tags after that"


def test_few_runs_get_their_parameters_at_once(tree: RunTree, tmp_path: Path) -> None:
    writer = Writer(lambda: tree, tmp_path / "journal.jsonl", interval_s=0.05)
    writer.begin(trial(0))
    eventually(lambda: writer.waiting == 0)
    assert children(tree)["t0000"].data.params == {"lr": "0.1", "hidden": "64"}
    assert writer.close(120) == 0


def deliverer_of(tree: RunTree, pending: Pending, cpus: float = 1.0) -> Deliverer:
    def refused(*what: Any) -> None:
        raise AssertionError(what)

    return Deliverer(tree, pending, threading.RLock(), refused, lambda: None, threading.Event(), lambda: cpus)


def put(pending: Pending, kind: Any, value: Any) -> None:
    name = value.trial.trial_id if kind == "end" else getattr(value, "trial_id", "t0000")
    pending.add(Write(kind, name, value, 1))


def test_a_run_of_a_crowd_that_goes_on_waits_and_one_that_has_ended_does_not(
    tree: RunTree, calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pending = Pending()
    turns = deliverer_of(tree, pending)
    for index in range(NUM_TRIALS):
        put(pending, "begin", trial(index))
    assert not turns.turn(closing=False).failed
    pending.add(Write("epochs", "t0000", [epoch(1)], 2))
    put(pending, "end", TrialRecord(trial(1), "finished"))
    assert turns.turn(closing=False).delivered == 1
    assert calls == {"create_run": NUM_TRIALS, "log_batch": 1, "set_terminated": 1}
    monkeypatch.setattr(deliverer, "LIVE_S", 0.0)
    monkeypatch.setattr(deliverer, "SPACING_S", 0.0)
    assert turns.turn(closing=False).delivered == 1, "t0000, whose time has come; the others have no metrics yet"
    assert calls["log_batch"] == 2
    assert turns.turn(closing=True).delivered == NUM_TRIALS - 2
    assert calls["log_batch"] == NUM_TRIALS
    assert not pending


def test_several_runs_are_written_at_once_where_the_store_takes_it(
    tree: RunTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(deliverer.WRITERS, "sqlite", 3)
    together, create, one = threading.Barrier(3, timeout=30), tree.mlflow.create_run, threading.Lock()

    def meeting(*arguments: Any, **named: Any) -> Any:
        together.wait()
        with one:
            return create(*arguments, **named)

    monkeypatch.setattr(tree.mlflow, "create_run", meeting)
    pending = Pending()
    for index in range(6):
        put(pending, "begin", trial(index))
    turn = deliverer_of(tree, pending).turn(closing=True)
    assert (turn.delivered, turn.failed) == (6, False)
    assert len(children(tree)) == 6


def test_a_store_that_fails_stops_all_that_write_to_it(tree: RunTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(deliverer.WRITERS, "sqlite", 3)
    asked = []

    def failing(*arguments: Any, **named: Any) -> None:
        asked.append(1)
        raise ConnectionError("500: the database failed")

    for name in ("create_run", "set_tag"):
        monkeypatch.setattr(tree.mlflow, name, failing)
    pending = Pending()
    for index in range(50):
        put(pending, "begin", trial(index))
    turns = deliverer_of(tree, pending)
    turn = turns.turn(closing=True)
    assert (turn.delivered, turn.failed) == (0, True)
    assert len(asked) <= 2 * 3 * 2, "each of the three asks for a run, probes the sweep's, and stops"
    assert "500: the database failed" in str(turns.delayed)
    assert len(pending.batches) == 50


def put_whole(pending: Pending, num_trials: int) -> None:
    """Let runs wait that are over."""
    for index in range(num_trials):
        put(pending, "begin", trial(index))
        pending.add(Write("epochs", f"t{index:04d}", [epoch(1), epoch(2)], 2))
        put(pending, "end", TrialRecord(trial(index), "finished"))


@pytest.fixture
def awaited(tree: RunTree, monkeypatch: pytest.MonkeyPatch) -> list[StoreProcess]:
    """Processes that were started: this one writes no further run before the first of them is ready."""
    monkeypatch.setattr(deliverer, "HELP_S", 0.0)
    monkeypatch.setattr(deliverer, "CROWD", CROWD)
    started: list[StoreProcess] = []
    create = tree.mlflow.create_run

    def start(uri: str) -> StoreProcess:
        started.append(StoreProcess(uri))
        return started[-1]

    def waiting(*arguments: Any, **named: Any) -> Any:
        if started:
            eventually(lambda: started[0].cpu_s or started[0].is_lost)
        return create(*arguments, **named)

    monkeypatch.setattr(deliverer, "StoreProcess", start)
    monkeypatch.setattr(tree.mlflow, "create_run", waiting)
    return started


def test_another_process_writes_to_a_file_where_many_runs_wait(tree: RunTree, awaited: list[StoreProcess]) -> None:
    pending, num_trials = Pending(), FEW
    put_whole(pending, num_trials)
    turns = deliverer_of(tree, pending, cpus=2.0)
    turn = turns.turn(closing=True)
    assert (turn.delivered, turn.failed, len(awaited)) == (num_trials, False, 1)
    assert not pending
    assert turn.cpu_s > awaited[0].cpu_s > 0
    turns.close()
    assert awaited[0].is_lost
    runs = children(tree)
    assert len(runs) == num_trials
    for run in runs.values():
        assert (run.info.status, run.info.start_time, run.info.end_time) == ("FINISHED", 1, 1)
        assert losses(tree, run) == [(1, 0.5), (2, 0.5)]


def test_a_process_that_dies_loses_no_run(
    tree: RunTree, awaited: list[StoreProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    pending, num_trials = Pending(), FEW
    put_whole(pending, num_trials)
    turns = deliverer_of(tree, pending, cpus=2.0)
    log = RunTree.log

    def dying(written: RunTree, *arguments: Any, **named: Any) -> None:
        if written is not tree:
            os.kill(written.mlflow.pid, signal.SIGKILL)
        log(written, *arguments, **named)

    monkeypatch.setattr(RunTree, "log", dying)
    turn = turns.turn(closing=True)
    assert (turn.delivered, turn.failed) == (num_trials - 1, True)
    assert "a process that writes to the store has ended" in str(turns.delayed)
    assert turns.turn(closing=True).delivered == 1
    assert len(awaited) == 1, "what has failed is not tried again"
    turns.close()
    assert {run.info.status for run in children(tree).values()} == {"FINISHED"}
    assert len(children(tree)) == num_trials


@pytest.mark.parametrize(("num_trials", "cpus"), [(FEW, 1.0), (CROWD - 1, 4.0)])
def test_no_other_process_writes_where_runs_or_cpus_are_few(
    tree: RunTree, awaited: list[StoreProcess], num_trials: int, cpus: float
) -> None:
    pending = Pending()
    put_whole(pending, num_trials)
    assert deliverer_of(tree, pending, cpus).turn(closing=True).delivered == num_trials
    assert not awaited


def test_a_file_without_a_log_has_one_writer(
    tree: RunTree, awaited: list[StoreProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raygpu.tracking.sqlite_file.has_log", lambda path: False)
    pending = Pending()
    put_whole(pending, FEW)
    assert deliverer_of(tree, pending, cpus=4.0).turn(closing=True).delivered == FEW
    assert not awaited


def test_a_process_that_cannot_start_is_asked_for_once(
    tree: RunTree, awaited: list[StoreProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def failing(uri: str) -> StoreProcess:
        asked.append(uri)
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(deliverer, "StoreProcess", failing)
    pending = Pending()
    put_whole(pending, FEW)
    assert deliverer_of(tree, pending, cpus=4.0).turn(closing=True) == deliverer.DeliveryTurn(FEW, False, ANY)
    assert asked == [tree.uri]


def test_deliveries_take_all_cpus_once_nothing_else_does(tree: RunTree, tmp_path: Path) -> None:
    writing = Writer(lambda: tree, tmp_path / "journal.jsonl", cpus=CpuLimit(0.25, num_cpus=8))
    assert writing._cpus() == 2
    writing.finish()
    assert writing._cpus() == 8
    assert writing.close(60) == 0


def test_the_journal_forgets_what_was_delivered_while_other_runs_wait(
    tree: RunTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_writes, "MOST_LINES", 10)
    path = tmp_path / "journal.jsonl"
    writing = Writer(lambda: tree, path, interval_s=0.05)
    for index in range(NUM_TRIALS):
        writing.begin(trial(index))
    for number in range(1, 8):
        for index in range(5, NUM_TRIALS):
            writing.epochs(f"t{index:04d}", [epoch(number)])
    for index in range(5, NUM_TRIALS):
        writing.end(TrialRecord(trial(index), "finished"))
    eventually(lambda: {write.trial_id for write in load(path)[0]} <= {f"t{index:04d}" for index in range(5)})
    assert writing.close(120) == 0
    assert len(children(tree)) == NUM_TRIALS


def test_the_journal_is_kept_until_the_disk_has_what_the_store_took(
    tree: RunTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.jsonl"
    lines_at_sync: list[int] = []

    def sync(uri: str) -> None:
        assert uri == tree.uri
        lines_at_sync.append(len(path.read_text().splitlines()))
        if len(lines_at_sync) == 1:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr("raygpu.tracking.client.sync", sync)
    writing = Writer(lambda: tree, path, interval_s=0.05)
    writing.begin(trial(0))
    eventually(lambda: lines_at_sync)
    assert len(load(path)[0]) == 1, "the disk did not take it"
    writing.epochs("t0000", [epoch(1)])
    assert writing.close(120) == 0
    assert lines_at_sync[:2] == [1, 2]
    assert "Input/output error" in writing.faults[0]
