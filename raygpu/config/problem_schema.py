"""Fields that the configurations of several commands share: the code to train, its data, devices and storage."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from raygpu.config.metric_direction import direction_of
from raygpu.config.sections import (
    DataSection,
    DevicesSection,
    Direction,
    GpuSection,
    ScriptSection,
    Section,
    TrackingSection,
)
from raygpu.config.source import PICKLED
from raygpu.config.written_values import Values
from raygpu.errors import BadInput
from raygpu.storage import LOCAL, Storage

LOCAL_WINS = "give one of the two; where the file has a storage, --storage local leaves it out"
"""Advice for a run whose file has a storage and whose flags have a folder."""
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


def maximizes(metric: str, direction: Direction | None) -> bool:
    """Return whether a larger score is better; without a direction, by the metric's name."""
    return (direction or direction_of(metric)) != "min"


class ProblemConfig(Section):
    """Fields of every command: the code to train, its data and its devices."""

    name: Annotated[str, Field(pattern=NAME_PATTERN, max_length=100)] | None = None
    """The name of the run and of its folder under runs_dir. Default: the file's name and the time."""
    experiment: str | None = None
    """Code to train: "package.module:Name" or "path/to/file.py:name", a class or a function."""
    command: str | None = None
    """Script to train: "python train.py --lr {lr}". {trial_id}, {seed} and {epochs} exist too, and with
    folds {fold}, from 0, and {folds}."""
    epochs: Annotated[int, Field(ge=1)] | None = None
    """Epochs of each trial; of a function or script, the number of reports after which it is stopped."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Decides the trials, their initial parameters and their order of data."""
    runs_dir: str = "runs"
    """The folder that holds the runs' folders."""
    data: DataSection = DataSection()
    gpu: DevicesSection = DevicesSection()
    tracking: TrackingSection = TrackingSection()

    COMMAND: ClassVar[str] = ""
    """Name of the command."""
    TABLE: ClassVar[str] = ""
    """Name of the table that holds the hyper-parameters."""
    REFUSED: ClassVar[Mapping[str, str]] = {}
    """Keys that this command refuses instead of leaving them out, and why."""

    @property
    def code_name(self) -> str:
        """Name of the code for a person: the experiment's, of one from a notebook its class's, or the command."""
        if self.experiment is not None and self.experiment.endswith(PICKLED):
            return Path(self.experiment).stem.rpartition("-")[0]
        return self.experiment or str(self.command)

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.experiment is None) == (self.command is None):
            raise ValueError('give either experiment = "module:Name" or command = "python train.py --lr {lr}"')
        return self


class StoredConfig(ProblemConfig):
    """Fields of commands whose results go where workers of other nodes can write too."""

    storage: str = LOCAL
    """Storage of results and checkpoints: local (runs_dir, on this machine), a folder that all nodes share, or object
    storage by its URI, s3://BUCKET/FOLDER; credentials come from the environment of every node."""

    @field_validator("storage")
    @classmethod
    def _known_storage(cls, value: str) -> str:
        try:
            Storage.at(value)
        except BadInput as error:
            raise ValueError(str(error).partition("; ")[2]) from error
        return value

    def runs_folder(self) -> Path:
        """Return the folder of this machine that gets the run's own: storage where that is a folder, else runs_dir.

        Raises BadInput if both are given.
        """
        storage = Storage.at(self.storage).path if self.storage != LOCAL else None
        if storage is None:
            return Path(self.runs_dir).resolve()
        if self.runs_dir != type(self).model_fields["runs_dir"].default:
            raise BadInput(f"runs_dir: {self.storage} is where runs' folders go, by storage; {LOCAL_WINS}")
        return storage


class ScoredConfig(StoredConfig):
    """Fields of commands that compare models by a metric."""

    metric: Annotated[str, Field(min_length=1)] = "loss"
    """The metric that scores a trial, or a training's model, measured on the validation data."""
    direction: Direction | None = None
    """max or min. Default: what the metric's name says, as loss, error, mae, or accuracy, f1, score; others need it."""

    @property
    def maximize(self) -> bool:
        """Whether a larger score is better."""
        return maximizes(self.metric, self.direction)


class TrialsConfig(ProblemConfig):
    """Trainings that share GPUs, with hyper-parameters from a space."""

    profiles: str | None = None
    """The folder of kept profiles, and of compiled steps of arrays. Default: raygpu in the user's cache folder."""
    space: Values = Field(default_factory=dict)
    """The search space: a distribution or a constant for each hyper-parameter."""
    script: ScriptSection = ScriptSection()
    gpu: GpuSection = GpuSection()

    TABLE: ClassVar[str] = "space"

    @model_validator(mode="after")
    def _has_script(self) -> Self:
        if self.command is None and self.script != ScriptSection():
            raise ValueError(
                f'script: is for a command, as in command = "python train.py"; leave it out for {self.experiment}'
            )
        return self
