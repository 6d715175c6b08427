from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raygpu.experiment import Splits
from raygpu.records.run_directory import SCORE, RunDirectory
from raygpu.records.trial_records import Records
from raygpu.search.repeats import Repetition
from raygpu.search.scoring import Scoring, TrialScores
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import Trial
from raygpu.workflow.winner_score import Models, kept_models, scored_once, trained_models, winners_models

X = np.zeros((3, 1), np.float32)
TESTED = Splits(X, X, X, X)


class Scorer:
    """Scores models by their trials' seeds, and counts its calls."""

    def __init__(self, *errors: BaseException) -> None:
        self.calls: list[list[str]] = []
        self.errors = list(errors)

    def __call__(self, models: Models) -> Mapping[str, Mapping[str, float]]:
        self.calls.append(list(models))
        if self.errors:
            raise self.errors.pop()
        return {name: {"accuracy": float(trial.seed)} for name, (trial, _) in models.items()}


@pytest.fixture
def folder(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path, "sweep")


def models(*names: str) -> dict[str, tuple[Trial, str]]:
    return {name: (Trial(name, number + 1, {}), "somewhere") for number, name in enumerate(names)}


def at_end(*names: str) -> dict[str, int | None]:
    """Epochs of models that were trained to their end."""
    return dict.fromkeys(names, 10)


def test_a_winner_is_scored_once_however_often_the_sweep_is_resumed(folder: RunDirectory) -> None:
    score, lines = Scorer(), list[str]()
    found = [scored_once(folder, TESTED, models("t0006"), score, lines.append, at_end("t0006")) for _ in range(3)]
    assert score.calls == [["t0006"]]
    assert found[0] == found[1] == found[2]
    assert found[0] is not None
    assert found[0].num_samples == 3
    assert not lines


def test_another_winner_after_a_resume_is_scored_and_says_that_the_data_was_used_before(folder: RunDirectory) -> None:
    score = Scorer()
    scored_once(folder, TESTED, models("t0006"), score, print, at_end("t0006"))
    found = scored_once(folder, TESTED, models("t0008-1", "t0008-2"), score, print, at_end("t0008-1", "t0008-2"))
    assert found is not None
    assert found.metrics == {"test/accuracy": 1.5}
    assert found.line("accuracy").endswith("never used by the search; they have scored 1 earlier winner)")
    assert score.calls == [["t0006"], ["t0008-1", "t0008-2"]]


def test_a_winner_that_was_trained_on_is_scored_again(folder: RunDirectory) -> None:
    score = Scorer()
    scored_once(folder, TESTED, models("t0006"), score, print, {"t0006": 10})
    for _ in range(2):
        found = scored_once(folder, TESTED, models("t0006"), score, print, {"t0006": 60})
    assert score.calls == [["t0006"], ["t0006"]]
    assert found is not None
    assert (found.epochs, found.winners) == ({"t0006": 60}, 2)


def test_the_score_of_a_part_of_a_sets_models_says_so(folder: RunDirectory) -> None:
    trained = {"t0008-1": 1, "t0008-2": 1, "t0008-3": 1}
    found = scored_once(folder, TESTED, models("t0008-3"), Scorer(), print, trained)
    assert found is not None
    assert found.line("accuracy") == (
        "test accuracy 1 (1 of the set's 3 models: no checkpoints of the others were kept; of 3 samples never used by"
        " the search)"
    )
    assert found.fact("accuracy") == ("test accuracy", "1 (1 of the set's 3 models)")
    whole = scored_once(folder, TESTED, models(*trained), Scorer(), print, trained)
    assert whole is not None
    assert "the mean of 3 models" in whole.line("accuracy")


@pytest.mark.parametrize("error", [ValueError("no loss"), KeyboardInterrupt()])
def test_what_goes_wrong_costs_a_line_and_a_resume_tries_again(folder: RunDirectory, error: BaseException) -> None:
    score, lines = Scorer(error), list[str]()
    assert scored_once(folder, TESTED, models("t0006"), score, lines.append, at_end("t0006")) is None
    (line,) = lines
    assert "not scored on the test data" in line
    assert f"sweep --resume {folder}" in line
    assert scored_once(folder, TESTED, models("t0006"), score, lines.append, at_end("t0006")) is not None


def test_without_a_checkpoint_nothing_is_scored(folder: RunDirectory) -> None:
    score, lines = Scorer(), list[str]()
    assert scored_once(folder, TESTED, {}, score, lines.append, {}) is None
    assert not score.calls
    assert "no checkpoint of it was kept" in lines[0]


def recorded(records: list[TrialRecord]) -> Records:
    made = Records(len(records), Scoring("accuracy", maximize=True), [], 1, repetition=Repetition(repeats=5))
    made.by_id.update({record.trial.trial_id: record for record in records})
    return made


def test_the_models_of_a_winner_are_those_of_its_set_that_have_a_score_and_a_checkpoint(
    folder: RunDirectory, tmp_path: Path
) -> None:
    def record(name: str, score: float | None, **values: Any) -> TrialRecord:
        return TrialRecord(Trial(name, 0, {}), "finished", score, **values)

    best = record("t0001-2", 0.9)
    others = [
        record("t0001-1", 0.8), record("t0001-3", -math.inf, diverged=True), record("t0001-4", None),
        record("t0001-5", 0.7), record("t0002-1", 0.8),
    ]  # fmt: skip
    here = {name: tmp_path / "tune" / name for name in ("t0001-2", "t0001-3", "t0001-4", "t0002-1")}
    for path in here.values():
        path.mkdir(parents=True)
    (folder.checkpoints / "t0001-1").mkdir(parents=True)  # kept at the end of an earlier start
    uris = {name: str(path) for name, path in here.items()} | {"t0001-1": str(tmp_path / "gone")}
    records = recorded([best, *others])
    trained = trained_models(records, best)
    assert list(trained) == ["t0001-1", "t0001-2", "t0001-5"]
    found = kept_models(folder, records, trained, uris)
    assert {name: Path(uri).parent.name for name, (_, uri) in found.items()} == {
        "t0001-1": "checkpoints",
        "t0001-2": "tune",
    }


def test_the_model_of_a_winner_that_is_under_way_has_the_epoch_of_its_checkpoint(
    folder: RunDirectory, tmp_path: Path
) -> None:
    """A time budget may end before the checkpoint of the epoch that was reported last."""
    scores = TrialScores(0.9, last_epoch=10)
    winner = TrialRecord(Trial("t0000", 0, {}), "interrupted", 0.9, scores=scores)
    records = Records(1, Scoring("accuracy", maximize=True), [], 20)
    records.by_id["t0000"] = winner
    (tmp_path / "extracted").mkdir()
    checkpoints = {"t0000": str(tmp_path / "extracted")}
    assert winners_models(folder, records, winner, checkpoints)[1] == {"t0000": 10}
    (tmp_path / "extracted" / SCORE).write_text(json.dumps({"epoch": 9, "score": 0.8}))
    models, trained = winners_models(folder, records, winner, checkpoints)
    score = scored_once(folder, TESTED, models, Scorer(), print, trained)
    assert score is not None
    assert score.epochs == {"t0000": 9}
    assert score.is_of(winners_models(folder, records, winner, checkpoints)[1]), "a resume that trained nothing"
