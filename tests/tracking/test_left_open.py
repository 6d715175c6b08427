"""A sweep that goes on tells MLflow the ends of trials that it lacks, and no others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from raygpu.config import SweepConfig
from raygpu.records.run_directory import RunDirectory
from raygpu.records.set_records import ranked_sets
from raygpu.search.repeats import Repetition
from raygpu.search.trial_record import TrialRecord
from raygpu.tracking import left_open
from raygpu.tracking.left_open import end_left_open
from raygpu.tracking.session import SweepSession, open_store
from raygpu.tracking.writer import CpuLimit
from tests.tracking.services import children, epoch, eventually, losses, trial


@pytest.fixture
def session(new_store: Callable[[Path], str], tmp_path: Path) -> Callable[[], SweepSession]:
    """A start of one sweep."""
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

    return lambda: SweepSession(config, folder, open_store(config), cpus=CpuLimit(1.0))


def test_the_ends_that_were_lost_with_a_machine_are_told_again(session: Callable[[], SweepSession]) -> None:
    records = [
        TrialRecord(trial(index), status, epochs=2, metrics=dict(epoch(2, 2.0).metrics), rgu_hours=1.5, error=error)
        for index, (status, error) in enumerate([("finished", None)] * 3 + [("failed", "Traceback"), ("stopped", None)])
    ]
    first = session()
    for record in records[:2]:
        first.writer.begin(record.trial)
        first.writer.epochs(record.trial.trial_id, [epoch(1, 1.0)])
    first.writer.epochs("t0000", [epoch(2, 2.0)])
    first.writer.end(records[0])
    first.writer.begin(records[4].trial)
    first.writer.end(TrialRecord(records[4].trial, "interrupted"))
    assert first.writer.close(60) == 0
    lost = [record.trial.trial_id for record in records[1:]]
    before = first.writer.ready(0).mlflow.get_run(children(first.writer.ready(0))["t0000"].info.run_id)

    again = session()
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
    third = session()
    assert third.tree() is not None
    assert end_left_open(third, records) == []
    third.writer.close(60)


def test_a_run_that_was_deleted_in_mlflow_is_not_created_again(
    session: Callable[[], SweepSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [TrialRecord(trial(index), "finished", epochs=1, metrics={"train/loss": 1.0}) for index in range(3)]
    first = session()
    for record in records[:2]:
        first.writer.begin(record.trial)
        first.writer.end(record)
    assert first.writer.close(60) == 0
    tree = first.writer.ready(0)
    tree.mlflow.delete_run(children(tree)["t0001"].info.run_id)

    again = session()
    assert again.tree() is not None
    with monkeypatch.context() as away:
        away.setattr(left_open, "all_runs", lambda *_, **__: 1 / 0)
        assert end_left_open(again, records) == [], "a store that does not answer"
    (line,) = end_left_open(again, records)
    assert line.startswith("MLflow: 1 trials that an earlier start has ended")
    assert again.writer.close(60) == 0
    assert sorted(children(tree)) == ["t0000", "t0002"]
    assert end_left_open(session(), records[:2]) == []


def test_the_metrics_of_a_set_are_told_again_with_its_trainings_ends(session: Callable[[], SweepSession]) -> None:
    config = SweepConfig.model_validate(
        {"experiment": "a:b", "metric": "score", "trials": 2, "repeats": 2, "space": {"x": 1}}
    )
    repetition = Repetition.of(config)
    records = [
        TrialRecord(repetition.training(trial(index), number, 0), "finished", epochs=1, score=score)
        for index in range(2)
        for number, score in enumerate((1.0, 3.0))
    ]
    sets = ranked_sets([*records[:2], records[2]], repetition, maximize=True)
    assert session().writer.close(60) == 0
    again = session()
    tree = again.tree()
    assert tree is not None
    end_left_open(again, records[:3], sets)
    assert again.writer.close(60) == 0
    scores = [run.data.metrics.get("set/score") for _, run in sorted(children(tree).items())]
    assert scores == [2.0, 2.0, None], "the second set lacks a training"
