"""Records, their Pareto front, and the file of it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from raygpu.errors import BadInput, UnknownMetric
from raygpu.records import objectives_csv
from raygpu.records.objectives_csv import ObjectivesRow
from raygpu.records.trial_records import Records
from raygpu.search.scoring import ScoreRule, Scoring, TrialScores
from raygpu.search.trials import EpochResult, Trial

EPOCHS = {
    "t0000": [(0.5, 3.0), (0.9, 5.0)],
    "t0001": [(0.8, 1.0), (0.7, 2.0)],
    "t0002": [(0.6, 9.0), (0.6, 9.0)],
    "t0003": [(0.99, math.nan), (0.99, math.nan)],
}


def records_of(score_rule: ScoreRule) -> Records:
    records = Records(4, Scoring("accuracy", True, score_rule, (("latency_ms", False),)), [], 2)
    for name, epochs in EPOCHS.items():
        records.start(Trial(name, 0, {}))
        for number, (accuracy, latency) in enumerate(epochs, start=1):
            metrics = {"validation/accuracy": accuracy, "latency_ms": latency}
            records.add(name, [EpochResult(number, metrics)], None)
        records.end(name, "finished")
    return records


def test_the_front_has_the_values_of_the_scores_epoch() -> None:
    assert [record.objectives for record in records_of("last").front()] == [(0.9, 5.0), (0.7, 2.0)]
    assert [record.objectives for record in records_of("best").front()] == [(0.9, 5.0), (0.8, 1.0)]


def test_a_metric_that_is_not_finite_keeps_a_trial_off_the_front_alone() -> None:
    records = records_of("last")
    assert records.ranked()[0].trial.trial_id == "t0003"
    assert records.by_id["t0003"].objectives is None


def test_without_further_metrics_there_is_no_front() -> None:
    records = Records(1, Scoring("accuracy", True), [], 1)
    records.start(Trial("t0000", 0, {}))
    records.add("t0000", [EpochResult(1, {"accuracy": 0.5})], None)
    assert records.front() == []


def test_a_further_metric_that_no_one_reports_is_named() -> None:
    scoring = Scoring("accuracy", True, "last", (("latency_ms", False),))
    with pytest.raises(UnknownMetric, match="read 'latency_ms'; the experiment reports: accuracy"):
        TrialScores().take(scoring, EpochResult(1, {"accuracy": 0.5}))


def test_the_file(tmp_path: Path) -> None:
    records, path = records_of("last"), tmp_path / "objectives.csv"
    assert objectives_csv.read(path) == ([], [])
    objectives_csv.write(path, ["accuracy", "latency_ms"], list(records.by_id.values()), {"t0000"})
    assert objectives_csv.read(path) == (
        ["accuracy", "latency_ms"],
        [
            ObjectivesRow("t0000", True, (0.9, 5.0)),
            ObjectivesRow("t0001", False, (0.7, 2.0)),
            ObjectivesRow("t0002", False, (0.6, 9.0)),
        ],
    )
    path.write_text("id,front,a\nt0000,yes,much\n")
    with pytest.raises(BadInput, match="writes it anew"):
        objectives_csv.read(path)


@pytest.mark.parametrize("content", [b'id,front,loss\nt0000,"yes,0.5\n', b"id,front,loss\n\xff,yes,0.5\n"])
def test_a_file_that_cannot_be_split_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "objectives.csv").write_bytes(content)
    with pytest.raises(BadInput, match=r"objectives.csv: .*; --resume writes it anew"):
        objectives_csv.read(tmp_path / "objectives.csv")
