"""Writes of a job of an array wait in the journal, and reach MLflow later as if they had been delivered at once."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from raygpu.config import SweepConfig
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import EpochResult
from raygpu.tracking import carried_store
from raygpu.tracking.journal import Journal, load
from raygpu.tracking.pending_writes import Write
from raygpu.tracking.session import open_store
from raygpu.tracking.spool import Spool
from tests.tracking.services import trial as trial_of


def test_all_kinds_of_writes_wait_and_outlive_the_process(tmp_path: Path) -> None:
    path = tmp_path / "undelivered.jsonl"
    trial = trial_of(0)
    spool = Spool(path)
    spool.begin(trial)
    spool.place("t0000", 0, 0.5)
    spool.epochs("t0000", [EpochResult(1, {"score": 1.0}, 1, 1.0)])
    spool.metrics("t0000", {"test": 2.0})
    spool.run_metrics(3, {"gpu/0/memory_gib": 1.0})
    spool.end(TrialRecord(trial, "finished"))
    with path.open("ab") as file:
        file.write(b'{"cut')  # by the death of the process
    again = Spool(path)
    assert again.num_spooled == 6
    again.restart(trial)
    assert again.close(0) == 0
    writes, damaged = load(path)
    assert [write.kind for write in writes] == ["begin", "place", "epochs", "metrics", "gpu", "end", "restart"]
    assert damaged == []
    assert again.faults == []


def test_no_store_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(carried_store.SPOOL_VARIABLE, "1")
    assert open_store(SweepConfig(experiment="a:b", trials=1)) is None


def test_what_a_full_disk_did_not_take_is_added_once_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(journal: Journal, write: Write) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    spool = Spool(tmp_path / "undelivered.jsonl")
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "add", full)
        spool.begin(trial_of(0))
        spool.metrics("t0000", {"test": 2.0})
        assert spool.close(0) == 2
    assert spool.faults == [f"tracking: {tmp_path} cannot be written: No space left on device"]
    spool.run_metrics(3, {"gpu/0/memory_gib": 1.0})
    assert (spool.close(0), spool.num_spooled) == (0, 3)
    assert [write.kind for write in load(tmp_path / "undelivered.jsonl")[0]] == ["begin", "metrics", "gpu"]
