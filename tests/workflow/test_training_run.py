"""A production training under way: what its reports become in the history, in MLflow and in the timeline."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from raygpu.engines.train.production import TrainingOutcome
from raygpu.engines.train.worker_reports import Joined, Notice, Saved
from raygpu.experiment import Splits
from raygpu.records import timeline
from raygpu.records.run_directory import RunDirectory
from raygpu.records.timeline import TRAINING
from raygpu.records.training_progress import Best, History, Progress, Restored
from raygpu.search.scoring import Scoring
from raygpu.search.trials import EpochResult, Trial
from raygpu.storage import Storage
from raygpu.workflow.training_curves import TrainingCurves
from raygpu.workflow.training_run import TrainingRun


class Started(TrainingRun):
    """A start of a training in a folder, without workers."""

    def __init__(self, folder: Path, resuming: bool = False) -> None:
        self.written: list[tuple[int, dict[str, float]]] = []
        self.lines: list[str] = []
        self.folder = RunDirectory(folder)
        self.path, self.resuming, self._notes = folder / "timeline.jsonl", resuming, set()
        writer: Any = SimpleNamespace(run_metrics=lambda step, metrics: self.written.append((step, dict(metrics))))
        self.history = History(Scoring("loss", False), [], 9)
        self.curves = TrainingCurves(self.path, "loss", self.history, writer)
        self.config: Any = SimpleNamespace(tracking=SimpleNamespace(enabled=True))
        self.console: Any = SimpleNamespace(
            detail=lambda line: None, lines=self.lines.extend, line=self.lines.append, warn=self.lines.append
        )

    def join(self, epoch: int, restored: Restored | None = None, notes: tuple[str, ...] = ()) -> None:
        self._take(Joined(0, 0, 1, epoch, notes, restored))

    def end_epoch(self, epoch: int, loss: float) -> None:
        result = EpochResult(epoch, {"loss": loss})
        self._take(Progress(epoch, 4, 4, 0.1, 1.0, (8,), (8.0,), (1,), None, "", result))

    @property
    def in_mlflow(self) -> dict[int, float]:
        """The metric's values by epoch, each of which was written once."""
        pairs = [(step, metrics["loss"]) for step, metrics in self.written if "loss" in metrics]
        assert len(dict(pairs)) == len(pairs)
        return dict(pairs)

    @property
    def in_timeline(self) -> dict[int, float]:
        """The metric's values by epoch, as the report has them."""
        return {epoch: values["loss"] for epoch, values in timeline.read(self.path).curves[TRAINING].items()}


def test_a_resume_replaces_the_epochs_after_its_checkpoint_everywhere_but_in_mlflow(tmp_path: Path) -> None:
    first = Started(tmp_path)
    first.join(0)
    for epoch in range(1, 8):
        first.end_epoch(epoch, 1.0 / epoch)  # and it is killed after its checkpoint of epoch 5
    assert list(first.in_mlflow) == [1, 2, 3, 4, 5, 6, 7]
    second = Started(tmp_path, resuming=True)
    second.folder.write_summary({"epochs": 5})
    second.join(5, Restored(5, {"loss": 0.2}, Best(0.2, 5)))
    assert second.lines == ["goes on after epoch 5; MLflow keeps epochs 6 to 7 of the attempt before"]
    assert list(second.in_timeline) == [1, 2, 3, 4, 5]
    second.end_epoch(6, 3.0)  # and it is killed again, before MLflow gets anything of it
    assert not second.written
    assert second.folder.read_summary() is None, "until its end, the summary is the first one's"
    third = Started(tmp_path, resuming=True)
    third.join(5, Restored(5, {"loss": 0.2}, Best(0.2, 5)))
    for epoch in (6, 7, 8):
        third.end_epoch(epoch, 2.0)
    assert third.in_mlflow == {8: 2.0}, "what an earlier start has written is not written twice"
    assert third.in_timeline == {1: 1.0, 2: 0.5, 3: 0.333333, 4: 0.25, 5: 0.2, 6: 2.0, 7: 2.0, 8: 2.0}
    assert (third.history.epoch, third.history.metrics) == (8, {"loss": 2.0})


def test_epochs_that_a_killed_command_had_not_heard_of_are_added_from_its_checkpoint(tmp_path: Path) -> None:
    first = Started(tmp_path)
    first.join(0)
    for epoch in range(1, 4):
        first.end_epoch(epoch, 1.0 / epoch)  # and it is killed after the workers' checkpoint of epoch 5
    second = Started(tmp_path, resuming=True)
    second.join(5, Restored(5, {"loss": 0.2}, Best(0.2, 5), earlier={3: {"loss": 1 / 3}, 4: {"loss": 0.25}}))
    assert second.lines == ["goes on after epoch 5"]
    assert second.in_mlflow == {4: 0.25, 5: 0.2}
    second.end_epoch(6, 0.1)
    assert second.in_timeline == {1: 1.0, 2: 0.5, 3: 0.333333, 4: 0.25, 5: 0.2, 6: 0.1}
    assert second.in_mlflow == {4: 0.25, 5: 0.2, 6: 0.1}


def test_the_readings_of_gpus_of_a_resume_come_after_those_of_the_starts_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their step in MLflow is the number of seconds that the training has run."""
    steps = list[int]()
    for began in (1000.0, 5000.0, 9000.0):
        clock = [began]
        monkeypatch.setattr(timeline.time, "time", lambda: clock[0])  # noqa: B023 - it is of this start
        run = Started(tmp_path, resuming=began > 1000.0)
        history: Any = SimpleNamespace(elapsed_s=0.0, latest_by_device=lambda: {0: 100.0})
        run.curves._history = history
        for passed_s in (0.0, 60.0, 120.0):
            clock[0], history.elapsed_s = began + passed_s, passed_s
            run.curves.add_readings({0: {"memory_gib": 2.0}})
        run.curves.timeline.close()
        steps += [step for step, metrics in run.written if metrics == {"gpu/0/memory_gib": 2.0}]
    assert steps == [0, 60, 120, 120, 180, 240, 240, 300, 360]
    readings = timeline.read(tmp_path / "timeline.jsonl").readings[0]
    assert [moment for moment, _ in readings[:4]] == [1000.0, 1060.0, 1120.0, 5000.0]
    assert readings[0][1] == {"memory_gib": 2.0, "samples_per_s": 100.0}


def test_a_note_of_workers_is_printed_once_and_what_happens_to_them_each_time(tmp_path: Path) -> None:
    run = Started(tmp_path)
    run.join(0, notes=("a note",))
    for epoch in range(1, 5):
        run.end_epoch(epoch, 1.0 / epoch)
        for line in ("a note", "another"):
            run._take(Notice(line, once=True))
    assert run.lines == ["a note", "another"]
    for _ in range(2):
        run._take(Notice("no space left"))
    assert run.lines[2:] == ["no space left"] * 2


def test_after_a_lost_worker_the_last_attempt_alone_counts(tmp_path: Path) -> None:
    """A function without a checkpoint of its own begins again."""
    run = Started(tmp_path)
    run.join(0, notes=("a note",))
    for epoch in range(1, 8):
        run.end_epoch(epoch, 1.0 / epoch)
        run._take(Saved(epoch, 0, 1.0 / epoch, best=True))
    run.folder.write_summary({"epochs": 3})
    run.join(0, Restored(0, {}, None), notes=("a note", "another"))
    assert run.lines == [
        "a note",
        "another",
        "a worker was lost; the training goes on after epoch 0; MLflow keeps epochs 1 to 7 of the attempt before",
    ]
    assert run.folder.read_summary() == {"epochs": 3}, "as before"
    assert (run.history.epoch, run.history.metrics, run.history.best) == (0, {}, None)
    assert run.history.curve() == []
    for epoch in (1, 2):
        run.end_epoch(epoch, 5.0)
    assert run.in_timeline == {1: 5.0, 2: 5.0}
    assert run.history.metrics == {"loss": 5.0}
    assert run.history.curve() == [5.0, 5.0]
    assert list(run.in_mlflow) == [1, 2, 3, 4, 5, 6, 7]


def test_a_best_score_whose_checkpoint_went_with_the_workers_is_that_of_the_restored_one(tmp_path: Path) -> None:
    run = Started(tmp_path)
    run.join(0)
    for epoch in (1, 2):
        run.end_epoch(epoch, 1.0 / epoch)
        run._take(Saved(epoch, 0, 1.0 / epoch, best=True))
    run.join(1, Restored(1, {"loss": 1.0}, Best(1.0, 1)))
    assert (run.history.epoch, run.history.best) == (1, Best(1.0, 1))


def test_a_training_that_has_ended_stays_ended(tmp_path: Path) -> None:
    run = Started(tmp_path, resuming=True)
    run.join(0, Restored(2, {"loss": 1.0}, Best(1.0, 1), ended=True))
    assert run.lines == ["has ended already"]
    assert (run.history.epoch, run.history.best) == (2, Best(1.0, 1))


class WithTestData:
    """A training whose model of an epoch has that epoch for its loss on the test data."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        x = np.zeros((3, 1), np.float32)
        self.best, self.run = Storage(str(folder / "best")), Started(folder)
        run: Any = self.run
        run.folder, run.on_test = RunDirectory.create(folder, "mine"), None
        run.found = SimpleNamespace(test=Splits(x, x, x, x), source=None)
        run.config.gpu = SimpleNamespace(precision="fp32")
        run.prepared = SimpleNamespace(trial=Trial("train", 0, {}))
        run.layout = SimpleNamespace(placing=SimpleNamespace(cpus=1.0, gpus=1.0))
        run.cluster = SimpleNamespace(travelled=lambda source: source)
        monkeypatch.setattr(
            "raygpu.engines.cluster.scoring_worker.scores_on_test",
            lambda work, tested, models, say: {name: {"loss": float(self.epoch)} for name in models},
        )

    def end(self, epoch: int, *, interrupted: bool = False) -> Any:
        """The score after a start that ended with this best epoch: its metrics, its epochs, and the winners so far."""
        self.epoch = epoch
        self.best.write("progress.json", json.dumps({"score": 1.0 / epoch, "epoch": epoch}).encode())
        self.run.on_test = None
        self.run._score_model(TrainingOutcome(None, self.best, interrupted))
        score = self.run.on_test
        return score and (dict(score.metrics), dict(score.epochs), score.winners)


def test_the_model_of_another_best_epoch_is_scored_on_the_test_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resume with more epochs may find a better one; one that finds none looks at the test data no more."""
    training = WithTestData(tmp_path, monkeypatch)
    assert [training.end(epoch) for epoch in (4, 4, 7)] == [
        ({"test/loss": 4.0}, {"train": 4}, 1),
        ({"test/loss": 4.0}, {"train": 4}, 1),
        ({"test/loss": 7.0}, {"train": 7}, 2),
    ]


def test_an_interrupted_resume_has_the_score_of_its_best_epoch_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = WithTestData(tmp_path, monkeypatch)
    assert training.end(4, interrupted=True) is None
    scored = training.end(4)
    assert training.end(4, interrupted=True) == scored
    assert training.end(7, interrupted=True) is None
