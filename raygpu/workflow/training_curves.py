"""The curves of a production training: what its workers' reports become in MLflow and in `timeline.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from raygpu.records import timeline
from raygpu.records.timeline import TRAINING, Timeline
from raygpu.records.training_progress import History, Progress
from raygpu.records.trial_writer import TrialWriter
from raygpu.search.trials import EpochResult


class TrainingCurves:
    """Curves of the last attempt to train, in the timeline; MLflow keeps an epoch's values as it got them first."""

    def __init__(self, path: Path, metric: str, history: History, writer: TrialWriter) -> None:
        """Read how far earlier starts came. path: of the timeline. history: of the training."""
        earlier = timeline.read(path)
        self._in_mlflow = earlier.furthest.get(TRAINING, 0)
        """Last epoch that MLflow has, whether it still counts or not."""
        self._earlier_s = sum(earlier.lasted_s)
        self.timeline = Timeline(path, metric)
        self._history, self._writer = history, writer

    def go_back(self) -> str:
        """Drop the epochs after that of the history, from which the workers go on; return a clause on those that
        MLflow keeps, empty without any. Add those up to the checkpoint that a killed command had not heard of."""
        epoch, last = self._history.epoch, self._in_mlflow
        self.timeline.go_back(TRAINING, epoch)
        noted = self.timeline.last_epoch(TRAINING)
        for number, metrics in sorted(self._history.restored.items()):
            if noted < number <= epoch:
                self._add_epoch(number, metrics)
        self.timeline.flush()
        if last <= epoch:
            return ""
        kept = f"epoch {last}" if last == epoch + 1 else f"epochs {epoch + 1} to {last}"
        return f"; MLflow keeps {kept} of the attempt before"

    def add(self, report: Progress) -> None:
        """Write a report that the history has taken in."""
        history, is_new = self._history, report.epoch > self._in_mlflow
        if is_new and (metrics := history.curves()):
            self._writer.run_metrics(report.steps * (report.epoch - 1) + report.step, metrics)
        if report.result is not None:
            self._add_epoch(report.epoch, history.metrics)
            self.timeline.flush()

    def add_readings(self, readings: Mapping[int, Mapping[str, float]]) -> None:
        """Write readings of GPUs, by index and name: to MLflow by the seconds of this start and of all before, and with
        the throughput of each to the timeline."""
        if metrics := {f"gpu/{index}/{name}": value for index, of in readings.items() for name, value in of.items()}:
            self._writer.run_metrics(round(self._earlier_s + self._history.elapsed_s), metrics)
        rates = {index: {"samples_per_s": rate} for index, rate in self._history.latest_by_device().items()}
        for index in {**readings, **rates}:
            self.timeline.gpu(index, {**readings.get(index, {}), **rates.get(index, {})})

    def _add_epoch(self, epoch: int, metrics: Mapping[str, float]) -> None:
        if epoch > self._in_mlflow:
            self._writer.run_metrics(epoch, metrics)
            self._in_mlflow = epoch
        self.timeline.epochs(TRAINING, [EpochResult(epoch, metrics)])
