"""Read a sweep, or one of its trials, from MLflow by the id of its run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from raygpu.errors import BadInput, TrackingError, redacted
from raygpu.tracking import client
from raygpu.tracking.client import Refused

PARENT = "mlflow.parentRunId"


@dataclass(frozen=True, slots=True)
class Origin:
    """Sweep, and possibly one of its trials, as read from MLflow."""

    sweep: str
    """Name of the sweep."""
    sweep_run_id: str
    files: Path
    """Folder with the sweep's files, as far as MLflow has them: `config.toml`, `best.toml`, and the checkpoint `best/`.
    """
    trial_id: str | None
    """Trial of the run; None for a sweep's run."""
    params: Mapping[str, str]
    """Parameters of the run."""
    metrics: Mapping[str, float]
    """Last metrics of the run."""
    stopped: str | None
    """Reason why the trial ended before its last epoch; None if it did not."""
    diverged: bool
    """Whether the trial diverged; its metrics do not show it, since MLflow keeps an infinite loss as a large number."""


def origin(uri: str, experiment: str, run_id: str, folder: Path, *, checkpoint: bool) -> Origin:
    """Read the run of a sweep or a trial, and download its sweep's files into `folder`.

    checkpoint: whether the best trial's checkpoint is downloaded too. Raises BadInput if the run does not exist or
    belongs to neither a sweep nor a trial, TrackingError if the store cannot be read.
    """
    mlflow, uri, _ = client.connect(uri, experiment)
    try:
        run = mlflow.get_run(run_id)
        kind = run.data.tags.get("raygpu.kind")
        if kind not in ("sweep", "trial"):
            raise BadInput(
                f"--from: run {run_id} is {f'a {kind}' if kind else 'not raygpu'}'s; name a sweep or a trial"
            )
        parent = run if kind == "sweep" else mlflow.get_run(run.data.tags[PARENT])
        sweep_run_id = parent.info.run_id
        artifact_paths = {file.path for file in mlflow.list_artifacts(sweep_run_id)}
        for name in ("config.toml", "best.toml", *(["best"] if checkpoint else [])):
            if name in artifact_paths:
                mlflow.download_artifacts(sweep_run_id, name, str(folder))
    except (BadInput, TrackingError):
        raise
    except Exception as error:
        fault = client.fault(uri, error)
        if isinstance(fault, Refused) and "not found" in str(fault):
            raise BadInput(f"--from: no run {run_id} in {redacted(uri)}; name the store by --tracking.uri") from error
        raise fault from error
    trial_id = run.data.tags.get("raygpu.trial_id") if kind == "trial" else None
    tags, data = run.data.tags, (dict(run.data.params), dict(run.data.metrics))
    stopped, diverged = tags.get("raygpu.stopped"), "raygpu.diverged" in tags
    return Origin(parent.data.tags["raygpu.name"], sweep_run_id, folder, trial_id, *data, stopped, diverged)
