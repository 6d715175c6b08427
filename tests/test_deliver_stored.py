"""raygpu.deliver of a run in object storage that another machine has gone on with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from raygpu import deliver
from raygpu.config import SweepConfig
from raygpu.records import stored_run
from raygpu.records.run_directory import RunDirectory
from raygpu.search.trial_record import TrialRecord
from raygpu.tracking.journal import Journal
from raygpu.tracking.pending_writes import Write
from tests.test_deliver import SUMMARY, begun, others, whole, work
from tests.tracking.services import trial

__all__ = ["others"]  # used by itself: threads that other tests have left


@pytest.fixture
def config(new_store: Callable[[Path], str], tmp_path: Path) -> SweepConfig:
    given = {"experiment": "tests.cases:ramp", "metric": "score", "name": "night", "trials": 1, "space": {"x": 1}}
    places = {"runs_dir": str(tmp_path / "runs"), "storage": str(tmp_path / "bucket")}
    tracking = {"uri": new_store(tmp_path), "patience_s": 3}
    return SweepConfig.model_validate(given | places | {"tracking": tracking})


@pytest.fixture
def here(config: SweepConfig, tmp_path: Path) -> RunDirectory:
    """A sweep that was interrupted here, and whose last write waits."""
    run = RunDirectory.create(Path(config.runs_dir), "night", config.storage)
    run.write_config(config, tmp_path)
    run.note_start()
    session = begun(config, run)
    session.writer.begin(trial(0))
    summary = SUMMARY | {"tracking": session.identity(interrupted=True)}
    run.write_summary(summary)
    session.close(summary, interrupted=True)
    journal = Journal(run.journal)
    journal.add(Write("end", "t0000", TrialRecord(trial(0), "interrupted"), 1))
    journal.sync()
    run.publish()
    return run


def test_a_run_that_another_machine_has_ended_since_stays_as_it_ended(
    config: SweepConfig, here: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = RunDirectory(tmp_path / "there" / "night", here.storage)
    there.path.mkdir(parents=True)
    stored_run.fetch(there)
    there.note_start()
    session = begun(config, there)
    session.close(work(session), interrupted=False)
    there.publish()
    assert not here.shared.has(here.journal.name)
    assert deliver.main([str(here.path)]) == 0
    assert f"{here}: all of it is in MLflow" in capsys.readouterr().out
    whole(config)
    assert json.loads(here.shared.read("summary.json"))["tracking"]["status"] == "finished"
    assert not here.journal.exists()
