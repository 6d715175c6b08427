"""From a sweep to production: its best trial as the values of a training's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raygpu.config import SweepConfig, load, read_toml
from raygpu.errors import BadInput
from raygpu.runfolder import RunFolder


@dataclass(frozen=True, slots=True)
class Promotion:
    """A trial that is to be trained for production."""

    values: dict[str, Any]
    """Of a TrainConfig."""
    source_folder: Path
    """Where the experiment's relative paths start."""
    checkpoint: Path | None
    """The trial's own, where it was kept."""


def promoted(path: Path) -> Promotion:
    """The best trial of the sweep in this folder. Raises BadInput."""
    folder = RunFolder(path.resolve())
    if not folder.path.is_dir():
        raise BadInput(f"--from: {path}: no such folder; name a sweep's, as in runs/digits")
    if not folder.config.is_file() or not folder.run.is_file():
        raise BadInput(f"--from: {path} is no sweep's folder: it has no {folder.config.name}")
    if not folder.best_toml.is_file():
        raise BadInput(f"--from: {path} has no {folder.best_toml.name}: no trial of that sweep has ended with a score")
    values = read_toml(folder.best_toml)
    sweep = load(folder.config, {}, SweepConfig)
    values["tracking"] = sweep.tracking.model_dump()
    values["gpu"] = {"precision": sweep.gpu.precision, **values.get("gpu", {})}
    source = values["source"]
    if source.get("data") == "synthetic":
        values["data"] = {"synthetic": True}
    run_id = folder.read_run().get("mlflow_run_id")
    if run_id is not None:
        source["mlflow_run_id"] = run_id
    checkpoint = folder.checkpoints / source["trial_id"]
    return Promotion(values, folder.source_folder, checkpoint if checkpoint.is_dir() else None)
