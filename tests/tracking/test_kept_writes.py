"""The writer's files, on a disk that is full for a while."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raygpu.errors import TrackingError
from raygpu.tracking import kept_writes
from raygpu.tracking.journal import load
from raygpu.tracking.kept_writes import KeptWrites
from raygpu.tracking.pending_writes import Write
from tests.tracking.services import trial

WRITES = [Write("begin", f"t{index:04d}", trial(index), 1) for index in range(3)]


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the disk takes nothing, as its last element."""
    full, add, append = [False], kept_writes.Journal.add, kept_writes.append_lines

    def added(journal: kept_writes.Journal, write: Write) -> None:
        if full[-1]:
            raise OSError(28, "No space left on device")
        add(journal, write)

    def appended(path: Path, text: str, *, sync: bool) -> None:
        if full[-1]:
            raise OSError(28, "No space left on device")
        append(path, text, sync=sync)

    monkeypatch.setattr(kept_writes.Journal, "add", added)
    monkeypatch.setattr(kept_writes, "append_lines", appended)
    return full


def test_writes_that_the_disk_did_not_take_follow_in_order(tmp_path: Path, full: list[bool]) -> None:
    path, told = tmp_path / "undelivered.jsonl", list[str]()
    kept = KeptWrites(path, told.append)
    kept.add(WRITES[0])
    full.append(True)
    kept.add(WRITES[1])
    assert [write.trial_id for write in load(path)[0]] == ["t0000"]
    assert [write.trial_id for write in kept.all()] == ["t0000", "t0001"]
    full.append(False)
    kept.add(WRITES[2])
    assert [write.trial_id for write in load(path)[0]] == ["t0000", "t0001", "t0002"]
    assert told == [f"tracking: {tmp_path} cannot be written: No space left on device"]


def test_a_refused_value_is_counted_and_written_once_there_is_space(tmp_path: Path, full: list[bool]) -> None:
    told = list[str]()
    kept = KeptWrites(tmp_path / "undelivered.jsonl", told.append)
    full.append(True)
    kept.set_aside(TrackingError("too long"), "t0000", {"lr": "0.1"})
    assert kept.num_refused == 1
    assert not (tmp_path / kept_writes.REFUSED).exists()
    full.append(False)
    kept.sync()
    line = json.loads((tmp_path / kept_writes.REFUSED).read_text())
    assert line == {"fault": "too long", "trial_id": "t0000", "values": {"lr": "0.1"}}
    assert told[0] == "MLflow refused: too long"


@pytest.mark.parametrize("delivered", [True, False])
def test_without_the_store_s_file_the_journal_keeps_what_was_delivered(tmp_path: Path, delivered: bool) -> None:
    path = tmp_path / "undelivered.jsonl"
    kept = KeptWrites(path, lambda line: None)
    for write in WRITES:
        kept.add(write)
    kept.close(WRITES[2:], delivered=delivered)
    again = KeptWrites(path, lambda line: None)
    assert [write.trial_id for write in again.earlier] == (["t0002"] if delivered else ["t0000", "t0001", "t0002"])
