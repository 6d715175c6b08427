from __future__ import annotations

import csv
import datetime
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from torch import nn

from raygpu import Splits, TorchExperiment
from raygpu.config import SweepConfig
from raygpu.records import stored_run
from raygpu.records.run_directory import SCORE, RunDirectory
from raygpu.records.run_files import as_json
from raygpu.records.trial_records import Records
from raygpu.search.repeats import Repetition
from raygpu.search.scoring import Scoring, TrialScores
from raygpu.search.trial_record import Status, TrialRecord
from raygpu.search.trials import Trial
from raygpu.storage import Storage
from raygpu.workflow.summary import _described as described_best
from raygpu.workflow.summary import _write_predictions, best_record, plain, write_files
from raygpu.workflow.user_code import Problem


@pytest.mark.parametrize("value", [1, 0.5, "relu", True, [64, 32], {"a": 1}, None])
def test_what_json_holds_stays(value: object) -> None:
    assert plain(value) == value


@pytest.mark.parametrize("value", [math.inf, math.nan, datetime.date(2026, 1, 2), [math.inf], (object,)])
def test_the_rest_becomes_text(value: object) -> None:
    assert plain(value) == str(value)
    json.dumps(plain(value), allow_nan=False)


def test_a_summary_is_valid_json_whatever_is_in_it() -> None:
    summary = {"wall_s": math.inf, "plan": {"rates": [1.0, math.nan]}, "best": None, "name": "x"}
    found = json.loads(json.dumps(as_json(summary), allow_nan=False))
    assert found == {"wall_s": None, "plan": {"rates": [1.0, None]}, "best": None, "name": "x"}


@pytest.mark.parametrize(
    ("status", "of_epochs", "ended"),
    [
        ("finished", 27, None),
        ("stopped", 27, "stopped at epoch 3 of 27"),
        ("stopped", None, "stopped at epoch 3"),
        ("finished", None, None),
    ],
)
def test_the_summary_says_where_its_best_trial_was_stopped(
    status: Status, of_epochs: int | None, ended: str | None
) -> None:
    """It keeps its rank: its model is the best one that there is."""
    records = Records(2, Scoring("loss", maximize=False), [], of_epochs)
    records.by_id["t0000"] = TrialRecord(Trial("t0000", 0, {}), status, score=0.30, epochs=3)
    records.by_id["t0001"] = TrialRecord(Trial("t0001", 0, {}), "finished", score=0.35, epochs=27)
    best = best_record(records)
    assert best is not None
    assert best.trial.trial_id == "t0000"
    assert described_best(records, best, None)["ended"] == ended


class Plain(TorchExperiment):
    def data(self) -> Splits:
        return Splits.of(np.zeros((8, 2), np.float32), np.arange(8) % 2, validation=0.5)

    def model(self, hp: Any) -> nn.Module:
        return nn.Linear(2, 2)


def recorded(num_trials: int, **statuses: Status) -> Records:
    found = Records(num_trials, Scoring("accuracy", maximize=True), [], 1)
    for place, (name, status) in enumerate(statuses.items()):
        found.by_id[name] = TrialRecord(Trial(name, 0, {}), status, score=float(place))
    return found


def written(folder: RunDirectory, records: Records, checkpoints: dict[str, str]) -> list[str]:
    config = SweepConfig(experiment="a:B", metric="accuracy", trials=4, epochs=1, space={"lr": 0.1})
    splits = Plain().data()
    part = splits.validation_inputs, splits.validation_targets
    found = cast(Any, SimpleNamespace(code=Plain(), splits=splits, validation_of=lambda trial: part))
    summary = {"interrupted": records.count("interrupted")}
    return write_files(folder, config, cast(Problem, found), records, checkpoints, summary)


@pytest.mark.parametrize(
    ("num_trials", "last", "stay"), [(2, "finished", 0), (2, "interrupted", 2), (3, "finished", 2)]
)
def test_the_checkpoints_that_trials_go_on_from_stay_until_no_trial_is_left(
    tmp_path: Path, num_trials: int, last: Status, stay: int
) -> None:
    records = recorded(num_trials, t0000="finished", t0001=last)
    records.out_of_time = True  # it does not count as interrupted then
    tune = {name: tmp_path / "tune" / name for name in records.by_id}
    for path in tune.values():
        path.mkdir(parents=True)
    written(RunDirectory.create(tmp_path, "sweep"), records, {name: str(path) for name, path in tune.items()})
    assert len([path for path in tune.values() if path.is_dir()]) == stay


def test_a_best_trial_without_a_checkpoint_is_told_and_not_described_by_an_earlier_ones_files(tmp_path: Path) -> None:
    folder = RunDirectory(RunDirectory.create(tmp_path, "sweep").path, Storage(str(tmp_path / "shared")))
    folder.best.mkdir()
    (folder.best / "predictions.csv").write_text("of an earlier best trial")
    folder.publish()
    (line,) = written(folder, recorded(1, t0001="finished"), {})
    assert line == "no checkpoint of the best trial, t0001, was kept"
    assert not folder.best.exists()
    assert not (folder.shared / "best").is_dir()


def described(storage: Storage) -> dict[str, str]:
    return {name: (storage / "best").read(name).decode() for name in (storage / "best").files()}


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """A sweep in object storage that another machine has ended; its folder here, as it was fetched."""

    def predict(code: object, trial: Trial, checkpoint: Path, *_: object) -> tuple[str, list[np.ndarray]]:
        return f"of {trial.trial_id} from {(checkpoint / 'state').read_text()}", []

    monkeypatch.setattr("raygpu.training.torch.models.predict", predict)
    storage = Storage(str(tmp_path / "shared" / "sweep"))
    first, here = (RunDirectory(tmp_path / name / "sweep", storage) for name in ("first", "here"))
    for folder in (first, here):
        folder.trials.mkdir(parents=True)
    written(first, recorded(1, t0000="finished"), kept(tmp_path, "t0000", "the first start"))
    first.publish()
    assert described(storage) == {"architecture.txt": "of t0000 from the first start\n"}
    stored_run.fetch(here)
    return here


def kept(tmp_path: Path, trial_id: str, text: str) -> dict[str, str]:
    path = tmp_path / "tune" / trial_id
    path.mkdir(parents=True)
    (path / "state").write_text(text)
    return {trial_id: str(path)}


def test_a_resume_on_another_machine_describes_the_winner_from_its_checkpoint(ended: RunDirectory) -> None:
    records = recorded(2, t0001="finished", t0000="finished")
    assert written(ended, records, {}) == []
    ended.publish()
    assert described(ended.shared) == {"architecture.txt": "of t0000 from the first start\n"}


def test_the_description_of_a_winner_that_stays_outlives_its_checkpoint(ended: RunDirectory) -> None:
    (ended.shared_checkpoints / "t0000").remove()
    (line,) = written(ended, recorded(2, t0001="finished", t0000="finished"), {})
    assert "no checkpoint of the best trial" in line
    ended.publish()
    assert described(ended.shared) == {"architecture.txt": "of t0000 from the first start\n"}
    written(ended, recorded(2, t0000="finished", t0001="finished"), {})
    assert described(ended.shared) == {}, "another winner"


def test_a_winner_that_was_trained_on_replaces_its_checkpoint_in_storage(ended: RunDirectory, tmp_path: Path) -> None:
    checkpoints = kept(tmp_path / "again", "t0000", "the second start")
    assert written(ended, recorded(1, t0000="finished"), checkpoints) == []
    found = ended.checkpoint("t0000")  # as MLflow's session asks for it
    assert found is not None
    assert (found / "state").read_text() == "the second start"
    ended.publish()
    assert described(ended.shared) == {"architecture.txt": "of t0000 from the second start\n"}
    assert (ended.shared_checkpoints / "t0000").read("state") == b"the second start"


@pytest.mark.parametrize("repeats", [1, 2])
def test_it_is_said_where_the_checkpoint_of_a_trial_under_way_is_not_of_its_last_epoch(
    ended: RunDirectory, tmp_path: Path, repeats: int
) -> None:
    names = ["t0007"] if repeats == 1 else ["t0007-1", "t0007-2"]
    records = Records(repeats, Scoring("accuracy", maximize=True), [], 20, repetition=Repetition(repeats))
    checkpoints = dict[str, str]()
    for name in names:
        scores = TrialScores(0.5, last_epoch=10)
        records.by_id[name] = TrialRecord(Trial(name, 0, {}), "interrupted", 0.5, scores=scores)
        checkpoints |= kept(tmp_path / "again", name, "so far")
    assert written(ended, records, checkpoints) == []
    for epoch in (10, 9):
        for path in checkpoints.values():
            Path(path, SCORE).write_text(json.dumps({"epoch": epoch, "score": 0.5}))
        lines = written(ended, records, checkpoints)
        said = "is not of its last epoch 10 but epoch 9: interrupted since the last checkpoint"
        assert lines == [f"the kept checkpoint of {name} {said}" for name in names * (epoch == 9)]


@pytest.mark.parametrize(
    ("targets", "row"),
    [
        (np.array([2, 0]), ["2", "1", "0.25 0.75"]),
        (np.array([[2], [0]]), ["2", "1", "0.25 0.75"]),
        (np.array([1.5, 0.0]), ["1.5", "0.25 0.75"]),
        (np.array([[0, 1, 123456], [1, 0, 0]]), ["0 1 123456", "0.25 0.75"]),  # several labels of each sample
        (np.array([[[0.5, 1], [2, 3]]] * 2), ["0.5 1.0 2.0 3.0", "0.25 0.75"]),
        (np.array([452612.5, 0]), ["452612.5", "0.25 0.75"]),
        (np.array([0.1, 0], np.float32), ["0.1", "0.25 0.75"]),
        (np.zeros((2, 20), int), [" ".join("0" * 20), "0.25 0.75"]),
        (np.zeros((2, 30), int), [" ".join("0" * 20) + " ...", "0.25 0.75"]),
        (np.array(["2026-11-28", "2026-11-29"], "datetime64[D]"), ["2026-11-28", "0.25 0.75"]),
        (np.array([True, False]), ["True", "0.25 0.75"]),
    ],
)
def test_a_prediction_stands_beside_its_whole_target(targets: np.ndarray, row: list[str], tmp_path: Path) -> None:
    """A class is predicted where each target is one; of several labels the largest output is none."""
    file = tmp_path / "predictions.csv"
    _write_predictions(file, [np.array([0.25, 0.75])] * 2, targets)
    with file.open() as lines:
        header, first, _ = csv.reader(lines)
    assert first == ["0", *row]
    assert header == ["sample", "target", *(["predicted"] if len(row) == 3 else []), "outputs"]
