"""`runs/<name>/`: every path in it, and what is written there for a person and for the next command."""

from __future__ import annotations

import csv
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from raygpu.config import ProblemConfig, SweepConfig, load
from raygpu.errors import BadInput
from raygpu.trials import TrialRecord

TRAINING = "training"
"""Ray Train's run, below the checkpoints of a production training."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run. `path` is absolute."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def run(self) -> Path:
        """Which MLflow run the sweep is, for a resume."""
        return self.path / "run.json"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def trials_csv(self) -> Path:
        return self.path / "trials.csv"

    @property
    def best_toml(self) -> Path:
        return self.path / "best.toml"

    @property
    def best(self) -> Path:
        """The best trial's architecture and sample predictions."""
        return self.path / "best"

    @property
    def trials(self) -> Path:
        """A folder a trial: a script's output, a failed trial's traceback."""
        return self.path / "trials"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def training_checkpoints(self) -> list[Path]:
        """Of a production training, as Ray Train keeps them, the last one first."""
        folders = (folder for folder in (self.checkpoints / TRAINING).glob("checkpoint_*") if folder.is_dir())
        return sorted(folders, reverse=True)

    @property
    def tune(self) -> Path:
        """Ray Tune's own folder, for its restore."""
        return self.path / "tune"

    @property
    def spool(self) -> Path:
        """What could not be delivered to the tracking server."""
        return self.path / "undelivered.jsonl"

    @classmethod
    def create(cls, runs_dir: Path, name: str) -> RunFolder:
        """Make the folder. Raises BadInput if it exists or cannot be written."""
        folder = cls((runs_dir / name).resolve())
        if folder.path.exists():
            raise BadInput(
                f"name: {folder.path} exists already; go on with it by --resume {folder.path}, or choose another --name"
            )
        try:
            folder.path.mkdir(parents=True)
        except OSError as error:
            raise BadInput(f"runs_dir: {runs_dir} cannot be written: {error.strerror}") from error
        folder.trials.mkdir()
        return folder

    @classmethod
    def existing(cls, path: Path, kind: str = "sweep") -> RunFolder:
        """The folder of an earlier run. kind: of which command. Raises BadInput."""
        folder = cls(path.resolve())
        for needed in (folder.config, folder.run):
            if not needed.is_file():
                raise BadInput(f"--resume: {path} is no run's folder: it has no {needed.name}")
        own = folder.read_run().get("kind", "sweep")
        if own != kind:
            raise BadInput(f"--resume: {path} is a {own}'s; go on with it by python -m raygpu.{own} --resume {path}")
        return folder

    def remove(self) -> None:
        """Delete the folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)

    def write_config(self, config: ProblemConfig, source_folder: Path, kind: str = "sweep") -> None:
        """The resolved configuration. A field without a value is left out, as TOML has no null."""
        values = config.model_dump(exclude_none=True) | {"name": self.name}
        self.config.write_text(tomli_w.dumps(values))
        self.write_run({"source_folder": str(source_folder), "kind": kind})

    @property
    def source_folder(self) -> Path:
        """Where the experiment's relative paths start."""
        return Path(self.read_run()["source_folder"])

    def read_config(self) -> SweepConfig:
        """The configuration that the sweep was started with, with its choice where that says auto. Raises BadInput."""
        config = load(self.config, {}, SweepConfig)
        chosen = self.read_run().get("gpu", {})
        return config.model_copy(update={"gpu": config.gpu.model_copy(update=chosen)})

    def write_run(self, values: Mapping[str, Any]) -> None:
        known = self.read_run()
        temporary = self.run.with_suffix(".tmp")
        temporary.write_text(json.dumps(known | dict(values), indent=2))
        temporary.replace(self.run)

    def read_run(self) -> dict[str, Any]:
        return dict(json.loads(self.run.read_text())) if self.run.is_file() else {}

    def write_trials(self, records: Sequence[TrialRecord]) -> None:
        """`trials.csv`: a row a trial, hyper-parameters as columns of their own."""
        names = list(dict.fromkeys(name for record in records for name in record.trial.hyperparameters))
        own = ["id", "status", "score", "epochs", "samples_per_s", "gpu", "rgu_hours"]
        header = [*own, *(f"space.{name}" if name in own else name for name in names)]
        with self.trials_csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(header)
            for r in records:
                row = [r.trial.trial_id, status(r), r.score, r.epochs, rounded(r.samples_per_s), r.gpu_index]
                row.append(rounded(r.rgu_hours, 6))
                writer.writerow([*row, *(r.trial.hyperparameters.get(name) for name in names)])

    def write_failures(self, records: Sequence[TrialRecord]) -> None:
        """`trials/<id>/error.txt`: the traceback of each trial that failed."""
        for record in records:
            if record.error is not None:
                folder = self.trials / record.trial.trial_id
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "error.txt").write_text(record.error)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        self.summary.write_text(json.dumps(summary, indent=2, allow_nan=False) + "\n")

    def write_best(self, config: SweepConfig, best: TrialRecord) -> None:
        """`best.toml`: the best trial, ready for a production training."""
        source = {"sweep": self.name, "trial_id": best.trial.trial_id, "score": best.score, "epoch": best.epochs}
        values: dict[str, Any] = {
            "experiment" if config.experiment else "command": config.experiment or config.command,
            "metric": config.metric,
            "direction": "max" if config.maximize else "min",
            "epochs": config.epochs or best.epochs,
            "seed": best.trial.seed,
            "hyperparameters": dict(best.trial.hyperparameters),
            "source": source | ({"data": "synthetic"} if config.data.synthetic else {}),
        }
        self.best_toml.write_text(tomli_w.dumps(values))

    def keep_checkpoints(self, by_trial: Mapping[str, str], wanted: Sequence[str], *, complete: bool) -> None:
        """Copy the wanted trials' last checkpoints to `checkpoints/<id>/`.

        complete: no trial will go on from a checkpoint, so Tune's own copies are dropped.
        """
        for trial_id, source in by_trial.items():
            target = self.checkpoints / trial_id
            if trial_id in wanted and Path(source).is_dir() and not (Path(source) / "failed").exists():
                shutil.rmtree(target, ignore_errors=True)
                shutil.copytree(source, target)
            elif trial_id not in wanted:
                shutil.rmtree(target, ignore_errors=True)
            if complete:
                shutil.rmtree(source, ignore_errors=True)


def status(record: TrialRecord) -> str:
    """A record's status as `trials.csv` shows it."""
    return "diverged" if record.diverged and record.status == "finished" else record.status


def rounded(value: float | None, digits: int = 1) -> float | None:
    """A reading for a file that a person reads; None stays None."""
    return None if value is None or not math.isfinite(value) else round(value, digits)
