"""A sweep under way: what it tells MLflow of its trials at its end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raygpu.records.run_directory import RunDirectory
from raygpu.records.score_on_test import TEST, ScoreOnTest
from raygpu.records.trial_records import Records
from raygpu.search.scoring import Scoring
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import EpochResult, Trial
from raygpu.workflow.sweep_run import SweepResult, SweepUnderWay


def test_a_trial_that_has_left_the_front_is_not_called_one_of_it(tmp_path: Path) -> None:
    folder = RunDirectory.create(tmp_path, "sweep")
    tags: dict[str, Any] = {}
    front = [SimpleNamespace(trial=SimpleNamespace(trial_id="t0000"))]
    sweep: Any = SimpleNamespace(
        folder=folder,
        records=SimpleNamespace(front=lambda: front),
        session=SimpleNamespace(writer=SimpleNamespace(tag=lambda name, values: tags.update({name: values}))),
        config=SimpleNamespace(metrics=("loss", "latency_ms")),
        earlier_front=frozenset(),
    )
    SweepUnderWay._tag_front(sweep)
    assert tags == {"t0000": {"raygpu.front": "true"}}
    folder.write_summary({"front": [{"trial_id": "t0000"}]})
    sweep.earlier_front = SweepUnderWay._earlier_front(sweep)
    front[0] = SimpleNamespace(trial=SimpleNamespace(trial_id="t0003"))
    SweepUnderWay._tag_front(sweep)
    assert tags == {"t0000": {"raygpu.front": "false"}, "t0003": {"raygpu.front": "true"}}


def test_the_score_of_a_winner_that_stays_is_in_the_summary_of_an_interrupted_resume(tmp_path: Path) -> None:
    scoring = Scoring("accuracy", maximize=True)
    records = Records(2, scoring, [], 1)
    record = records.by_id["t0000"] = TrialRecord(Trial("t0000", 0, {}), "finished", score=0.5)
    record.scores.take(scoring, EpochResult(1, {"accuracy": 0.5}))
    folder = RunDirectory.create(tmp_path, "sweep")
    sweep: Any = SimpleNamespace(folder=folder, records=records, summary={}, checkpoints={})
    SweepUnderWay._take_noted_score(sweep)
    assert not sweep.summary, "none was made"
    noted = ScoreOnTest.of(4, {"t0000": {"accuracy": 0.4}}, epochs={"t0000": 1}).as_dict()
    folder.write_run({TEST: noted})
    SweepUnderWay._take_noted_score(sweep)
    assert sweep.summary == {TEST: noted}
    sweep.summary = {}
    record.scores.take(scoring, EpochResult(2, {"accuracy": 0.6}))  # it was trained on
    SweepUnderWay._take_noted_score(sweep)
    assert not sweep.summary


@pytest.mark.parametrize("metrics", [(), ("loss", "latency_ms")])
def test_a_damaged_summary_of_an_earlier_start_is_none(metrics: tuple[str, ...], tmp_path: Path) -> None:
    folder = RunDirectory.create(tmp_path, "sweep")
    sweep: Any = SimpleNamespace(folder=folder, config=SimpleNamespace(metrics=metrics))
    for content in (None, '{"front": [{"trial_id', "[]", '{"front": 3}', '{"front": [{}]}'):
        if content is not None:
            folder.summary.write_text(content)
        assert SweepUnderWay._earlier_front(sweep) == frozenset()


@pytest.mark.parametrize(("common_failure", "code"), [(None, 0), ("ValueError: always", 1)])
def test_a_sweep_that_its_first_failures_have_ended_has_failed(common_failure: str | None, code: int) -> None:
    """One trial was still running, and has a score."""
    summary = {"best": {"trial_id": "t0000"}, "common_failure": common_failure, "tracking": {"undelivered": 0}}
    assert SweepResult(summary, None, []).exit_code == code
