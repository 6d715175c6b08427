"""How waiting writes are merged and sent, and what becomes of those that MLflow does not take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import EpochResult
from raygpu.tracking.pending_writes import Pending, Write
from raygpu.tracking.runs import RunTree
from raygpu.tracking.writer import Writer
from tests.tracking.services import children, epoch, eventually, losses, start_trial, trial


def test_waiting_writes_of_a_trial_are_one_call(tree: RunTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int, int]] = []
    send = tree.mlflow.log_batch

    def counted(run_id: str, metrics: list[Any], params: list[Any], tags: list[Any]) -> None:
        calls.append((len(metrics), len(params), len(tags)))
        send(run_id, metrics, params, tags)

    monkeypatch.setattr(tree.mlflow, "log_batch", counted)
    writer = Writer(lambda: tree, tmp_path / "spool.jsonl", interval_s=5)
    writer.begin(trial(0))
    for number in range(1, 21):
        writer.epochs("t0000", [epoch(number)])
    writer.end(TrialRecord(trial(0), "finished"))
    assert writer.close(120) == 0
    assert [metrics for metrics, _, _ in calls] == [60]


def test_a_refusal_does_not_hold_up_the_rest(tree: RunTree, tmp_path: Path) -> None:
    writer = Writer(lambda: tree, tmp_path / "spool.jsonl", interval_s=0.1)
    for index in range(3):
        writer.begin(trial(index))
    eventually(lambda: writer.waiting == 0)
    for index in range(2):
        tree.mlflow.delete_run(tree.children[f"t{index:04d}"].run_id)
    for index in range(3):
        writer.epochs(f"t{index:04d}", [epoch(1, 1.0)])
    writer.epochs("t0099", [epoch(1)])  # never begun
    assert writer.close(120) == 0
    assert losses(tree, children(tree)["t0002"]) == [(1, 1.0)]
    assert any("t0099" in fault for fault in writer.faults)
    assert any("active" in fault for fault in writer.faults)
    assert len(writer.faults) == len(set(writer.faults))


def test_one_refused_value_does_not_take_the_others_with_it(tree: RunTree, tmp_path: Path) -> None:
    run_id = start_trial(tree, trial(0, lr=0.1))
    writer = Writer(lambda: tree, tmp_path / "spool.jsonl", interval_s=0.1)
    writer.begin(trial(0, lr=0.2))  # MLflow lets no parameter change
    writer.epochs("t0000", [epoch(1, 1.0)])
    assert writer.close(120) == 0
    assert losses(tree, tree.mlflow.get_run(run_id)) == [(1, 1.0)]
    assert len(writer.faults) == 1
    assert "Changing param values" in writer.faults[0]


def test_a_write_that_fails_while_others_succeed_is_set_aside(
    tree: RunTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error for which MLflow blames itself, as for text that the database does not take."""
    send = tree.mlflow.log_batch

    def poisoned(run_id: str, metrics: list[Any], params: list[Any], tags: list[Any]) -> None:
        if any(metric.key == "bad" for metric in metrics) or any(tag.value == "bad" for tag in tags):
            raise ConnectionError("500: the database failed")
        send(run_id, metrics, params, tags)

    monkeypatch.setattr(tree.mlflow, "log_batch", poisoned)
    monkeypatch.setattr("raygpu.tracking.pending_writes.REPEAT_S", 0.0)
    spool = tmp_path / "spool.jsonl"
    writer = Writer(lambda: tree, spool, interval_s=0.05)
    writer.begin(trial(0))
    eventually(lambda: writer.waiting == 0)
    writer.tag("t0000", {"one": "good", "other": "bad"})
    writer.epochs("t0000", [EpochResult(1, {"train/loss": 1.0, "bad": 2.0}), epoch(2, 2.0)])
    writer.run_metrics(1, {"gpu/0/samples_per_s": 5.0})
    assert writer.close(60) == 0
    run = children(tree)["t0000"]
    assert losses(tree, run) == [(1, 1.0), (2, 2.0)]
    assert run.data.tags["one"] == "good"
    assert len(writer.faults) == 1
    assert "500: the database failed" in writer.faults[0]
    kept = [json.loads(line) for line in (tmp_path / "refused.jsonl").read_text().splitlines()]
    assert [(line["trial_id"], list(line["values"])) for line in kept] == [("t0000", ["bad"]), ("t0000", ["other"])]


def test_a_store_that_fails_for_all_is_waited_for(
    tree: RunTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server answers, but its database does not."""

    def failing(*arguments: Any) -> None:
        raise ConnectionError("500: the database failed")

    with monkeypatch.context() as patched:
        patched.setattr(tree.mlflow, "log_batch", failing)
        patched.setattr(tree.mlflow, "set_tag", failing)
        writer = Writer(lambda: tree, tmp_path / "spool.jsonl", interval_s=0.05)
        writer.begin(trial(0))
        writer.epochs("t0000", [epoch(1, 1.0)])
        assert writer.close(4) == 2
        assert writer.faults == []
        eventually(lambda: not writer._thread.is_alive())
    again = RunTree.open(tree.uri, "digits")
    again.resume_run(str(tree.run_id))
    assert Writer(lambda: again, tmp_path / "spool.jsonl", interval_s=0.05).close(120) == 0
    assert losses(again, children(again)["t0000"]) == [(1, 1.0)]


def test_epochs_after_an_ending_wait_behind_it() -> None:
    pending = Pending()
    for write in (
        Write("begin", "t0000", trial(0), 1),
        Write("end", "t0000", TrialRecord(trial(0), "interrupted"), 2),
        Write("begin", "t0000", trial(0), 3),
    ):
        pending.add(write)
    first, second = pending.batches["t0000"]
    assert (first.end is not None, second.end) == (True, None)


def test_a_trial_that_begins_anew_has_all_its_epochs() -> None:
    """What MLflow has of the run that is deleted is noted again and again until then."""
    pending = Pending()
    pending.known("t0000", 20)
    pending.add(Write("restart", "t0000", trial(0), 1))
    pending.known("t0000", 20)
    pending.add(Write("epochs", "t0000", [EpochResult(number, {"loss": 1.0}) for number in range(1, 26)], 2))
    assert [point.step for point in pending.batches["t0000"][0].points] == list(range(1, 26))


def test_a_process_that_ends_between_two_calls_leaves_no_half_epoch(
    tree: RunTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raygpu.tracking.pending_writes.POINTS_AT_ONCE", 8)
    results = [EpochResult(number, {"m1": 1.0, "m2": 2.0, "m3": 3.0}) for number in range(1, 6)]
    results.append(EpochResult(6, {f"w{index}": 1.0 for index in range(10)}))  # more than one call takes
    with monkeypatch.context() as patched:
        send, calls = tree.mlflow.log_batch, list[list[int]]()

        def dying(run_id: str, metrics: list[Any], params: list[Any], tags: list[Any]) -> None:
            if len(calls) == 1:
                raise ConnectionError("killed")
            calls.append([metric.step for metric in metrics])
            send(run_id, metrics, params, tags)

        patched.setattr(tree.mlflow, "log_batch", dying)
        patched.setattr(tree.mlflow, "set_tag", dying)
        writer = Writer(lambda: tree, tmp_path / "spool.jsonl", interval_s=5)
        writer.begin(trial(0))
        writer.epochs("t0000", results)
        assert writer.close(2) == 2
        eventually(lambda: not writer._thread.is_alive())
    assert calls == [[1, 1, 1, 2, 2, 2]]
    again = RunTree.open(tree.uri, "digits")
    again.resume_run(str(tree.run_id))
    assert Writer(lambda: again, tmp_path / "spool.jsonl", interval_s=0.05).close(120) == 0
    run_id = children(again)["t0000"].info.run_id
    for name in ("m1", "m2", "m3"):
        assert [point.step for point in again.mlflow.get_metric_history(run_id, name)] == [1, 2, 3, 4, 5]
    assert [point.step for point in again.mlflow.get_metric_history(run_id, "w9")] == [6]
