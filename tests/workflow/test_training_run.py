"""A production training under way: what its reports become in MLflow and in the timeline."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from raygpu.records import timeline
from raygpu.records.timeline import TRAINING
from raygpu.records.training_progress import History, Progress
from raygpu.search.scoring import Scoring
from raygpu.search.trials import EpochResult
from raygpu.workflow.training_run import TrainingRun


class Resumed(TrainingRun):
    """A training that goes on in a folder, without workers."""

    def __init__(self, folder: Path) -> None:
        self.written: list[tuple[int, dict[str, float]]] = []
        writer: Any = SimpleNamespace(run_metrics=lambda step, metrics: self.written.append((step, dict(metrics))))
        self.history = History(Scoring("loss", False), [], 9, device_of={0: 0})
        self.session: Any = SimpleNamespace(writer=writer)
        self.console: Any = SimpleNamespace(detail=lambda line: None)
        self._open_timeline(folder / "timeline.jsonl", "loss")

    def end_epoch(self, epoch: int) -> None:
        result = EpochResult(epoch, {"loss": 1.0 / epoch})
        self._take(Progress(epoch, 4, 4, 0.1, 1.0, (8,), (8.0,), (1,), None, "", result))


def test_epochs_that_an_earlier_start_has_written_are_not_written_twice(tmp_path: Path) -> None:
    first = Resumed(tmp_path)
    for epoch in range(1, 8):
        first.end_epoch(epoch)  # and it is killed after its checkpoint of epoch 5
    assert [step for step, metrics in first.written if "loss" in metrics] == [1, 2, 3, 4, 5, 6, 7]
    second = Resumed(tmp_path)
    for epoch in (6, 7, 8):
        second.end_epoch(epoch)
    assert {step for step, _ in second.written} == {8, 32}, "the epoch, and its last optimizer step"
    assert second.history.epoch == 8
    assert list(timeline.read(tmp_path / "timeline.jsonl").curves[TRAINING]) == list(range(1, 9))
