"""Runs that a resumed sweep finds in MLflow: how far they got, until when, and whether they have ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Child:
    """A trial's run in MLflow."""

    run_id: str
    last_epoch: int = 0
    """Last epoch whose metrics are logged; 0 for none."""
    last_ms: int = 0
    """Time of the last metric that is of no epoch, in milliseconds since 1970; 0 for none."""
    has_params: bool = False
    has_ended: bool = False
    ending: str | None = None
    """Outcome of the trial as its ended run has it; None of a run that goes on."""

    @classmethod
    def of(cls, run: Any) -> Child:
        """Return what MLflow has of a trial's run."""
        last_epoch = max((metric.step for metric in _metrics(run)), default=0)
        has_ended = run.info.status != "RUNNING"
        ending = run.data.tags.get("raygpu.status") if has_ended else None
        return cls(run.info.run_id, last_epoch, last_ms(run), bool(run.data.params), has_ended, ending)


def last_ms(run: Any) -> int:
    """Return the time of a run's last metric at step 0, where those lie that are of no epoch; 0 without one.

    Of several values of one step, MLflow takes the latest for the last one, so that a new value has to be later.
    """
    return max((metric.timestamp for metric in _metrics(run) if metric.step == 0), default=0)


def _metrics(run: Any) -> Any:
    return run.data.to_proto().metrics


def all_runs(mlflow: Any, experiment_id: str, query: str, *, deleted: bool = False) -> list[Any]:
    """Return all runs of a query: a run that is deleted between two pages would move another one out of sight.

    deleted: whether to return the deleted runs in place of the others.
    """
    from mlflow.entities import ViewType

    view = ViewType.DELETED_ONLY if deleted else ViewType.ACTIVE_ONLY
    runs: list[Any] = []
    token = None
    while True:
        page = mlflow.search_runs([experiment_id], query, view, max_results=500, page_token=token)
        runs += page
        if not (token := page.token):
            return runs
