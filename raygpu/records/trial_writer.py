"""The tracking store of a sweep or a training as a writer takes it: each write as one value."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import EpochResult, Trial

Kind = Literal["begin", "restart", "place", "epochs", "metrics", "end", "gpu"]


class TrialWriter(ABC):
    """Writer of trials' runs and of the run itself to the tracking store; every call returns at once."""

    delayed: str | None = None
    """Reason why writes are not delivered at present; None while they are."""

    def __init__(self) -> None:
        self.ended: set[str] = set()
        """Trials whose ends this process has written, or found among the writes that wait."""

    def begin(self, trial: Trial) -> None:
        """Begin the trial's run, or go on with an interrupted one."""
        self._put("begin", trial.trial_id, trial)

    def restart(self, trial: Trial) -> None:
        """Delete the trial's run so far and begin a new one: the trial runs again from its start."""
        self._put("restart", trial.trial_id, trial)

    def place(self, trial_id: str, gpu_index: int | None, gpu_share: float | None) -> None:
        """Tag the trial's run with its GPU and its share of the GPU; None values are left out."""
        tags = {"raygpu.gpu_index": gpu_index, "raygpu.gpu_share": gpu_share}
        self._put("place", trial_id, {name: value for name, value in tags.items() if value is not None})

    def tag(self, trial_id: str, tags: Mapping[str, Any]) -> None:
        """Set tags of the trial's run."""
        self._put("place", trial_id, dict(tags))

    def epochs(self, trial_id: str, results: Sequence[EpochResult]) -> None:
        """Log the metrics of epochs; epochs up to the last one logged are skipped, as after a retry."""
        self._put("epochs", trial_id, list(results))

    def metrics(self, trial_id: str, metrics: Mapping[str, float]) -> None:
        """Log metrics without an epoch to the trial's run, which may have ended."""
        self._put("metrics", trial_id, dict(metrics))

    def end(self, record: TrialRecord) -> None:
        """End the trial's run with the status, metrics and tags of its record."""
        # Only these are written, and the caller may go on changing the record.
        copy = TrialRecord(
            record.trial,
            record.status,
            diverged=record.diverged,
            error=record.error,
            reason=record.reason,
            rgu_hours=record.rgu_hours,
            score_rule=record.score_rule,
            scores=replace(record.scores),
        )
        self.ended.add(record.trial.trial_id)
        self._put("end", record.trial.trial_id, copy)

    def run_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log metrics of the run itself, as `gpu/0/samples_per_s`.

        step: MLflow's: of a sweep whole seconds since its start, of a training optimizer steps or epochs.
        """
        self._put("gpu", None, (int(step), dict(metrics)))

    @abstractmethod
    def _put(self, kind: Kind, trial_id: str | None, value: Any) -> None:
        """Take a write. value: of the type that `Write` names."""
