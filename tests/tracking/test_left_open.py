"""A sweep that goes on tells MLflow the ends of trials that it lacks, and no others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from raygpu.config import SweepConfig
from raygpu.records.run_directory import RunDirectory
from raygpu.search.trial_record import TrialRecord
from raygpu.tracking.left_open import end_left_open
from raygpu.tracking.session import SweepSession, open_store
from raygpu.tracking.writer import CpuLimit
from tests.tracking.services import children, epoch, eventually, losses, trial


def test_the_ends_that_were_lost_with_a_machine_are_told_again(
    new_store: Callable[[Path], str], tmp_path: Path
) -> None:
    config = SweepConfig.model_validate(
        {
            "experiment": "a:b",
            "metric": "score",
            "trials": 6,
            "space": {"x": 1},
            "tracking": {"uri": new_store(tmp_path)},
        }
    )
    folder = RunDirectory.create(tmp_path / "runs", "night")
    folder.write_config(config, tmp_path)

    def begun() -> SweepSession:
        return SweepSession(config, folder, open_store(config), cpus=CpuLimit(1.0))

    records = [
        TrialRecord(trial(index), status, epochs=2, metrics=dict(epoch(2, 2.0).metrics), rgu_hours=1.5, error=error)
        for index, (status, error) in enumerate([("finished", None)] * 3 + [("failed", "Traceback"), ("stopped", None)])
    ]
    session = begun()
    for record in records[:2]:
        session.writer.begin(record.trial)
        session.writer.epochs(record.trial.trial_id, [epoch(1, 1.0)])
    session.writer.epochs("t0000", [epoch(2, 2.0)])
    session.writer.end(records[0])
    session.writer.begin(records[4].trial)
    session.writer.end(TrialRecord(records[4].trial, "interrupted"))
    assert session.writer.close(60) == 0
    lost = [record.trial.trial_id for record in records[1:]]
    before = session.writer.ready(0).mlflow.get_run(children(session.writer.ready(0))["t0000"].info.run_id)

    again = begun()
    tree = again.tree()
    assert tree is not None
    running = TrialRecord(trial(5), "running")
    again.writer.begin(running.trial)
    (line,) = end_left_open(again, [*records, running])
    assert line.startswith("MLflow: 4 trials that an earlier start has ended had not ended there")
    assert end_left_open(again, [*records, running]) == []
    eventually(lambda: again.writer.waiting == 0)
    runs = children(tree)
    assert runs["t0000"].info.end_time == before.info.end_time
    assert {name: runs[name].info.status for name in lost} == {
        "t0001": "FINISHED", "t0002": "FINISHED", "t0003": "FAILED", "t0004": "KILLED"
    }  # fmt: skip
    assert {runs[name].data.metrics["rgu_hours"] for name in lost} == {1.5}
    assert all(runs[name].data.params == {"lr": "0.1", "hidden": "64"} for name in lost)
    assert losses(tree, runs["t0001"]) == [(1, 1.0), (2, 2.0)]
    assert losses(tree, runs["t0002"]) == [(2, 2.0)]
    assert again.writer.close(60) == 0
    third = begun()
    assert third.tree() is not None
    assert end_left_open(third, records) == []
    third.writer.close(60)
