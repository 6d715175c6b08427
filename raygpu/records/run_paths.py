"""The files and folders of a run's folder, by what they are for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import overload

from raygpu.storage import Storage

CHECKPOINTS = "checkpoints"


class _Inside:
    """A file or folder at a fixed place in the run's folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, run: None, owner: type[RunPaths]) -> _Inside: ...

    @overload
    def __get__(self, run: RunPaths, owner: type[RunPaths]) -> Path: ...

    def __get__(self, run: RunPaths | None, owner: type[RunPaths]) -> Path | _Inside:
        """Return its path; of the class, this descriptor."""
        return self if run is None else run.path / self._name


@dataclass(frozen=True, slots=True)
class RunPaths:
    """The paths in the folder of one run. `path` is absolute."""

    path: Path
    storage: Storage | None = None
    """The run's folder in object storage; None where the folder itself is shared."""
    config = _Inside("config.toml")
    """File of the resolved configuration."""
    run = _Inside("run.json")
    """File of the run's state for a resume: the MLflow run's id, the source folder, the kind of the run."""
    summary = _Inside("summary.json")
    """File of the summary."""
    error = _Inside("error.txt")
    """File of the traceback of a training that failed."""
    sets_csv = _Inside("sets.csv")
    """The table of the sets of hyper-parameters, of a sweep with repeats."""
    trials_csv = _Inside("trials.csv")
    """File of the trials, one row each."""
    population = _Inside("population.jsonl")
    """File of the takeovers in a population."""
    objectives_csv = _Inside("objectives.csv")
    """File of each trial's metrics, of a sweep with several."""
    timeline = _Inside("timeline.jsonl")
    """File of the curves, the trials' stays on the GPUs and the GPUs' readings, for the report."""
    profile = _Inside("profile.json")
    """File of the profile that `raygpu pack` has measured."""
    advice = _Inside("advice.json")
    """File of the advice of `raygpu pack --advise`."""
    points_csv = _Inside("points.csv")
    """The table of the points that `raygpu pack` has measured."""
    turns_csv = _Inside("turns.csv")
    """The table of the turns that `raygpu place` has measured."""
    report = _Inside("report.html")
    """The report, one file for a browser."""
    plots = _Inside("plots")
    """Folder of the report's main plots as pictures."""
    best_toml = _Inside("best.toml")
    """File of the best trial, ready for a production training."""
    best = _Inside("best")
    """Folder of the best trial's architecture and sample predictions."""
    trials = _Inside("trials")
    """Folder with a folder for each trial: a script's output and files, a failed trial's traceback."""
    checkpoints = _Inside(CHECKPOINTS)
    """Folder of the kept checkpoints on this machine."""
    extracted = _Inside("tune/extracted")
    """Folder of single trials' checkpoints, extracted from those of their arrays at an interruption."""
    journal = _Inside("undelivered.jsonl")
    """File of the writes that are not delivered to MLflow yet."""
