"""The file of the waiting writes: what it keeps, damaged lines, and a disk without space."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raygpu.errors import TrackingError
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import EpochResult, Trial
from raygpu.tracking.journal import Journal, load
from raygpu.tracking.pending_writes import Write
from raygpu.tracking.runs import RunTree
from raygpu.tracking.values import run_name
from raygpu.tracking.writer import Writer
from tests.tracking.services import children, epoch, eventually, losses, trial

LATER = '{"kind": "later", "trial_id": null, "value": 1, "time_ms": 1}'
"""A line of a version to come."""


def test_the_spool_keeps_every_kind_of_write(tmp_path: Path) -> None:
    record = TrialRecord(trial(0), "failed", diverged=True, error="Traceback", reason="why")
    writes = [
        Write("begin", "t0000", trial(0, shape=(1, 2), x=0.9589278962981181, deep=True), 1),
        Write("place", "t0000", {"raygpu.gpu_index": 0}, 2),
        Write("epochs", "t0000", [EpochResult(1, {"loss": float("inf")}, 10, 0.5)], 3),
        Write("end", "t0000", record, 4),
        Write("restart", "t0000", trial(0), 5),
        Write("gpu", None, (7, {"gpu/0/memory_gib": 1.5}), 6),
        Write("begin", "t0001-2", Trial("t0001-2", 3, {}, 1, 0), 7),
        Write("metrics", "t0001-2", {"set/score": 0.5}, 8),
    ]
    journal = Journal(tmp_path / "spool.jsonl")
    for write in writes:
        journal.add(write)
    with (tmp_path / "spool.jsonl").open("a") as file:
        file.write('{"kind": "be')  # the process was killed here
    back, damaged = load(tmp_path / "spool.jsonl")
    assert damaged == []
    assert [(write.kind, write.trial_id, write.time_ms) for write in back] == [
        (write.kind, write.trial_id, write.time_ms) for write in writes
    ]
    assert back[0].value.hyperparameters == {"shape": "(1, 2)", "x": 0.9589278962981181, "deep": True}
    assert run_name(back[0].value, ("x", "deep")) == "t0000 x=0.959 deep=True"
    assert back[2].value == writes[2].value
    assert (back[3].value.status, back[3].value.diverged, back[3].value.error) == ("failed", True, "Traceback")
    assert tuple(back[5].value) == (7, {"gpu/0/memory_gib": 1.5})
    assert back[6].value == Trial("t0001-2", 3, {}, 1, 0)
    assert back[7].value == {"set/score": 0.5}


def test_a_damaged_line_is_set_aside_and_holds_nothing_up(tree: RunTree, tmp_path: Path) -> None:
    spool = tmp_path / "spool.jsonl"
    journal = Journal(spool)
    for index in range(3):
        journal.add(Write("begin", f"t{index:04d}", trial(index), 1))
    lines = spool.read_text().splitlines()
    lines[1] = lines[1].replace("0.1", "0.9")  # a bit has flipped: it is valid JSON
    spool.write_text("\n".join([*lines, "no JSON", LATER, ""]))
    writer = Writer(lambda: tree, spool, interval_s=0.05)
    assert writer.num_earlier == 2
    assert writer.close(120) == 0
    assert set(children(tree)) == {"t0000", "t0002"}
    assert writer.faults == [f"3 waiting writes were damaged; they are set aside in {tmp_path / 'spool.damaged.jsonl'}"]
    kept = (tmp_path / "spool.damaged.jsonl").read_text().splitlines()
    assert kept == [lines[1], "no JSON", LATER]


def test_a_journal_of_version_0_1_is_delivered(tree: RunTree, tmp_path: Path) -> None:
    spool = tmp_path / "spool.jsonl"
    spool.write_text(
        '{"kind": "begin", "trial_id": "t0000", "time_ms": 1, "value": {"trial_id": "t0000", "seed": 0,'
        ' "hyperparameters": {"lr": "0.1"}}}\n'
    )
    assert Writer(lambda: tree, spool, interval_s=0.05).close(120) == 0
    assert set(children(tree)) == {"t0000"}


def full_disk(monkeypatch: pytest.MonkeyPatch, full: threading.Event) -> None:
    """While `full` is set, half of a line is written before the disk has no space left."""
    write, truncate, sync = os.write, os.ftruncate, os.fsync

    def cut(file: int, data: bytes) -> int:
        if not full.is_set():
            return write(file, data)
        if len(data) > 20:
            return write(file, data[:20])
        raise OSError(errno.ENOSPC, "No space left on device")

    def refused(call: Any) -> Any:
        def guarded(*arguments: Any) -> Any:
            if full.is_set():
                raise OSError(errno.ENOSPC, "No space left on device")
            return call(*arguments)

        return guarded

    patched = SimpleNamespace(**{**vars(os), "write": cut, "ftruncate": refused(truncate), "fsync": refused(sync)})
    monkeypatch.setattr("raygpu.tracking.journal.os", patched)


def test_a_full_disk_stops_no_delivery(tree: RunTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = threading.Event()
    full_disk(monkeypatch, full)
    writer = Writer(lambda: tree, tmp_path / "spool.jsonl", interval_s=0.05)
    writer.begin(trial(0))
    full.set()
    writer.epochs("t0000", [epoch(1, 1.0)])
    writer.begin(trial(1))
    eventually(lambda: writer.waiting == 0)
    assert writer.close(120) == 0
    runs = children(tree)
    assert losses(tree, runs["t0000"]) == [(1, 1.0)]
    assert set(runs) == {"t0000", "t0001"}
    assert writer.faults == [f"tracking: {tmp_path} cannot be written: No space left on device"]


def test_what_a_full_disk_did_not_take_is_in_the_journal_once_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, gate = threading.Event(), threading.Event()
    full_disk(monkeypatch, full)

    def out_of_reach() -> RunTree:
        gate.set()
        raise TrackingError("no answer")

    writer = Writer(out_of_reach, tmp_path / "spool.jsonl")
    writer.begin(trial(0))
    full.set()
    writer.epochs("t0000", [epoch(1, 1.0)])  # half of the line is there
    full.clear()
    writer.epochs("t0000", [epoch(2, 1.0)])
    kept, damaged = load(tmp_path / "spool.jsonl")  # as if the process were killed now
    assert [(write.kind, len(damaged)) for write in kept] == [("begin", 1), ("epochs", 1), ("epochs", 1)]
    assert writer.close(0.1) == 3
    assert [write.kind for write in load(tmp_path / "spool.jsonl")[0]] == ["begin", "epochs", "epochs"]


def test_the_writes_that_a_full_disk_does_not_take_are_kept_as_long_as_they_wait(
    tree: RunTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = threading.Event()
    full_disk(monkeypatch, full)
    monkeypatch.setattr("raygpu.tracking.kept_writes.MOST_LINES", 10)
    writer = Writer(lambda: tree, tmp_path / "spool.jsonl", interval_s=600)  # no turn by itself
    monkeypatch.setattr(writer._pending, "writes", lambda: [Write("begin", "t0009", trial(9), 1)])
    full.set()
    writer.begin(trial(0))
    for number in range(1, 101):
        writer.epochs("t0000", [epoch(number, 1.0)])
    monkeypatch.setattr(tree, "keep", lambda: True)
    writer._incoming.clear()
    writer._shorten_journal(tree)
    assert [write.trial_id for write in writer._kept._missing] == ["t0009"]
    full.clear()
    monkeypatch.undo()
    assert writer.close(120) == 0


def test_a_write_that_cannot_be_encoded_hinders_no_other(tree: RunTree, tmp_path: Path) -> None:
    writer = Writer(lambda: tree, tmp_path / "spool.jsonl", interval_s=0.05)
    for number in (0, 1):
        writer.begin(trial(number))
    writer.epochs("t0000", [EpochResult(1, {"loss": "text"})])  # type: ignore[dict-item]
    for number in (0, 1):
        writer.epochs(f"t000{number}", [epoch(2, 1.0)])
    writer.close(120)
    runs = children(tree)
    assert losses(tree, runs["t0001"]) == losses(tree, runs["t0000"]) == [(2, 1.0)]
    assert any("a write is not in the journal" in fault for fault in writer.faults)


def test_half_a_line_is_taken_back_where_the_disk_lets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full, truncate = threading.Event(), os.ftruncate
    full_disk(monkeypatch, full)
    monkeypatch.setattr("raygpu.tracking.journal.os.ftruncate", truncate)
    journal, write = Journal(tmp_path / "spool.jsonl"), Write("begin", "t0000", trial(0), 1)
    journal.add(write)
    full.set()
    with pytest.raises(OSError, match="No space left"):
        journal.add(write)
    full.clear()
    journal.add(write)
    kept, damaged = load(tmp_path / "spool.jsonl")
    assert (len(kept), damaged) == (2, [])


def test_what_was_cut_is_not_joined_to_the_next_write(tree: RunTree, tmp_path: Path) -> None:
    spool = tmp_path / "spool.jsonl"
    spool.write_text('{"kind": "begin", "trial_i')  # the process was killed at its first write
    writer = Writer(lambda: tree, spool, interval_s=600)
    writer.begin(trial(0))
    assert ([write.kind for write in load(spool)[0]], load(spool)[1]) == (["begin"], [])
    assert writer.close(120) == 0


def test_what_was_delivered_is_not_delivered_again(tree: RunTree, tmp_path: Path) -> None:
    spool = tmp_path / "spool.jsonl"
    journal = Journal(spool)
    journal.add(Write("begin", "t0000", trial(0), 1))
    writer = Writer(lambda: tree, spool, interval_s=0.05)
    eventually(lambda: writer.waiting == 0)
    eventually(lambda: spool.read_bytes() == b"")  # as if the process were killed now
    assert writer.close(120) == 0


def test_a_value_that_the_disk_does_not_take_is_set_aside_later(
    tree: RunTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(lambda: tree, tmp_path / "spool.jsonl", interval_s=0.05)
    refused = tmp_path / "refused.jsonl"
    refused.mkdir()  # nothing is written there
    writer.epochs("t0099", [epoch(1)])  # a trial that never began
    eventually(lambda: writer.num_refused == 1)
    refused.rmdir()
    assert writer.close(120) == 0
    assert "t0099" in refused.read_text()
