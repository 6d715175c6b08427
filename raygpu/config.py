"""The schemas of `conf/*.toml`, and how a file and flags become one configuration.

    config = load(Path("conf/sweep/digits.toml"), {"trials": "8", "gpu.fraction": "0.2"}, SweepConfig)

The file comes first, flags override it, and pydantic checks the result: every fault is one line. Every field but
`[space]` is also a flag; tyro renders `--help` from the same schemas.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from raygpu.errors import BadInput

Direction = Literal["max", "min"]
Precision = Literal["float32", "tf32", "bf16"]
Way = Literal["process", "mps", "fused", "split", "threads"]
"""How trainings share a GPU: processes side by side, the same under CUDA MPS, one array of models, one TensorFlow
process with a logical device for each, or threads of one process."""
WAYS: tuple[Way, ...] = get_args(Way)
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


class Section(BaseModel):
    """A table of the file: frozen, and unknown keys are faults."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class DataSection(Section):
    """What data the trials see, and how much of it."""

    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Train on a seeded, stratified part of the training data: 0.2 is a fifth. Validation data stays whole."""
    synthetic: bool = False
    """Made-up data of the same shapes, to measure speed offline; scores mean nothing."""


class SearchSection(Section):
    """How hyper-parameters are chosen."""

    algorithm: Literal["random", "grid", "optuna"] = "random"
    """random: drawn from [space]. grid: every combination of its choices. optuna: learns from earlier results."""
    generation: Annotated[int, Field(ge=1)] = 8
    """optuna: trials asked for at once, before their results are told. Wider is faster and learns less."""


class StoppingSection(Section):
    """When a trial ends before its last epoch."""

    algorithm: Literal["none", "halving", "median"] = "none"
    """halving: ASHA. median: stop below the median of the other trials' running means."""
    grace_epochs: Annotated[int, Field(ge=1)] = 1
    """No trial is stopped before this many epochs."""
    reduction: Annotated[float, Field(gt=1)] = 3.0
    """halving: one trial in this many survives each rung; rungs lie at grace_epochs x reduction^k."""
    min_trials: Annotated[int, Field(ge=1)] = 3
    """median: no trial is stopped before this many others have results."""


class GpuSection(Section):
    """How trials share the GPUs."""

    mode: Literal["auto", "process", "fused", "split"] = "auto"
    """process: one process per trial, packed on fractions of a GPU. fused: torch trials of one signature train as one
    array of models; the others as in process mode. split: Keras trials share a process, each on a logical device.
    auto: what is fastest here by a kept profile (python -m raygpu.pack) or, where that repays, a probe in the sweep."""
    width: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
    """fused: how many members of an array step as one program; auto measures it when the array starts. split: the
    number of logical devices."""
    fraction: Literal["auto"] | float = "auto"
    """The share of a GPU that a trial or an array asks for, snapped to 1/N; or a whole number of GPUs per trial."""
    memory_limit: bool = True
    """Hold every trial to its share of the GPU's memory: past it, it runs out of memory alone, and again with more."""
    mps: Literal["auto", "on", "off"] = "auto"
    """Pack processes under CUDA MPS, in which their kernels run at the same time; auto: where a gain was measured."""
    devices: str = "all"
    """Which GPUs of this machine: all, or indices (nvidia-smi's) and UUIDs separated by commas, as in 0,GPU-8a1b."""
    precision: Precision = "float32"
    """float32, tf32 (float32 with TF32 matrix products), or bf16 (automatic mixed precision)."""

    @field_validator("fraction", mode="before")
    @classmethod
    def _whole_or_part(cls, value: Any) -> Any:
        if value == "auto":
            return value
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = -1.0
        if 0.001 <= number <= 1 or (1 < number < 1e6 and number == int(number)):
            return number
        raise ValueError('allowed: "auto", a fraction from 0.001 to 1, or a whole number of GPUs')


class TrackingSection(Section):
    """Where MLflow keeps the runs."""

    enabled: bool = True
    """Log every trial to MLflow."""
    uri: str = "sqlite:///runs/mlflow.db"
    """The MLflow tracking store: sqlite:///FILE, postgresql://..., or http(s)://SERVER."""
    experiment: Annotated[str, Field(min_length=1)] = "raygpu"
    """The MLflow experiment that the sweep's runs go to."""


class ClusterSection(Section):
    """Which Ray runs the trials."""

    address: str = "local"
    """local: a Ray of this sweep's own, on this machine. auto or HOST:PORT: a Ray cluster that runs already."""
    max_failures: Annotated[int, Field(ge=0)] = 2
    """How often a trial whose worker was lost (killed, out of memory, node gone) goes on from its checkpoint."""


class ProblemConfig(Section):
    """What is trained, and with what: common to every command."""

    name: Annotated[str, Field(pattern=NAME_PATTERN, max_length=100)] | None = None
    """The name of the run and of its folder under runs_dir. Default: the file's name and the time."""
    experiment: str | None = None
    """What to train: "package.module:Name" or "path/to/file.py:name", a class or a function."""
    command: str | None = None
    """Or a script as it is: "python train.py --lr {lr}". {trial_id}, {seed} and {epochs} exist too."""
    epochs: Annotated[int, Field(ge=1)] | None = None
    """Epochs of each trial; of a function or script, the number of reports after which it is stopped."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Decides the trials, their initial parameters and their order of data."""
    runs_dir: str = "runs"
    """The folder that holds the runs' folders."""
    profiles: str | None = None
    """The folder of kept profiles. Default: raygpu/profiles in the user's cache folder."""
    space: dict[str, Any] = Field(default_factory=dict)
    """The search space: a distribution or a constant for each hyper-parameter."""
    data: DataSection = DataSection()
    gpu: GpuSection = GpuSection()
    tracking: TrackingSection = TrackingSection()

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.experiment is None) == (self.command is None):
            raise ValueError('give either experiment = "module:Name" or command = "python train.py --lr {lr}"')
        return self


class SweepConfig(ProblemConfig):
    """A search over hyper-parameters, packed on fractions of a GPU."""

    trials: Annotated[int, Field(ge=1)] | None = None
    """How many trials. A grid runs whole without it."""
    metric: Annotated[str, Field(min_length=1)] = "loss"
    """The metric that scores a trial, measured on the validation data at the trial's last epoch."""
    direction: Direction | None = None
    """max or min. Default: min for a metric named loss or error, otherwise max."""
    keep: Literal["best", "all"] = "best"
    """Whose checkpoint stays in the run's folder: the best trial's, or every trial's."""
    checkpoint_s: Annotated[float, Field(gt=0)] = 60.0
    """Seconds between a running trial's checkpoints, from which a lost or interrupted trial goes on."""
    search: SearchSection = SearchSection()
    stopping: StoppingSection = StoppingSection()
    cluster: ClusterSection = ClusterSection()

    @model_validator(mode="after")
    def _consistent(self) -> SweepConfig:
        if self.trials is None and self.search.algorithm != "grid":
            raise ValueError('trials: not given; only search.algorithm = "grid" knows how many there are')
        if self.epochs is None and self.stopping.algorithm == "halving":
            raise ValueError("epochs: not given; stopping by halving needs the largest number of epochs")
        return self

    @property
    def maximize(self) -> bool:
        """Whether a larger score is better."""
        if self.direction is not None:
            return self.direction == "max"
        return not any(word in self.metric.lower() for word in ("loss", "error"))


class PackConfig(ProblemConfig):
    """How many trainings one GPU carries: measured for a single draw of [space], at growing numbers at once."""

    ways: str = "all"
    """Which ways of sharing the GPU: all that exist here, or some of process, mps, fused, split, threads by commas."""
    most: Annotated[int, Field(ge=1)] = 377
    """The most trainings at once that are tried."""
    numbers: str = "auto"
    """How many at once: auto (1, 2, 3, 5, 8, 13 ... while more gain), or these by commas, whether they gain or not."""
    rounds: Annotated[int, Field(ge=1)] = 3
    """How often each point is measured; a point is the median."""
    window_s: Annotated[float, Field(gt=0)] = 1.0
    """Seconds of one measurement, after a warm-up; longer where a step takes long."""

    @field_validator("ways")
    @classmethod
    def _known_ways(cls, value: str) -> str:
        words = [word.strip() for word in value.split(",")]
        if value != "all" and (unknown := [word for word in words if word not in WAYS]):
            raise ValueError(f"{unknown[0]!r} is no way; allowed: all, or some of {', '.join(WAYS)} by commas")
        return value

    @field_validator("numbers", mode="before")
    @classmethod
    def _whole_numbers(cls, value: Any) -> str:
        words = [word.strip() for word in str(value).split(",")]
        if value != "auto" and not all(word.isdecimal() and int(word) > 0 for word in words):
            raise ValueError("allowed: auto, or whole numbers above 0 by commas, as in 4,8,12")
        return str(value)

    @property
    def chosen_numbers(self) -> tuple[int, ...] | None:
        """Those that are asked for; None for auto."""
        return None if self.numbers == "auto" else tuple(int(word) for word in self.numbers.split(","))

    @property
    def chosen_ways(self) -> tuple[Way, ...]:
        """Those that are asked for, in the order in which they are named everywhere."""
        words = [word.strip() for word in self.ways.split(",")]
        return tuple(way for way in WAYS if self.ways == "all" or way in words)


SCHEMAS: tuple[type[ProblemConfig], ...] = (SweepConfig, PackConfig)
C = TypeVar("C", bound=ProblemConfig)


def load(path: Path, overrides: Mapping[str, str], schema: type[C]) -> C:
    """Read a configuration file and apply flags by dotted name, `{"gpu.fraction": "0.2"}`.

    Keys that only another command knows are left out: a sweep's file says what to train to every command.
    Raises BadInput with a line for each fault: the key, what was read, what is allowed.
    """
    others = {name for other in SCHEMAS for name in other.model_fields} - set(schema.model_fields)
    values = {key: value for key, value in read_toml(path).items() if key not in others}
    for key, value in overrides.items():
        *tables, leaf = key.split(".")
        table = values
        for name in tables:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise BadInput(f"{path}: {name}: read {table!r}, but it is a table: [{name}]")
        table[leaf] = value
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        raise BadInput([_fault(path, detail, overrides, schema) for detail in _distinct(error.errors())]) from error


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as a dict. Raises BadInput."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file; name a configuration, as in conf/sweep/digits.toml") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{path}: not valid TOML: {error}") from error


def fields(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every field that is a flag: its dotted name and its annotation. `[space]` is none."""
    for name, info in section.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, Section):
            yield from fields(info.annotation, f"{prefix}{name}.")
        elif prefix + name != "space":
            yield prefix + name, info.annotation


def suggestion(word: str, known: list[str]) -> str:
    """` (did you mean 'x'?)`, or nothing."""
    close = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _distinct(details: list[ErrorDetails]) -> list[ErrorDetails]:
    """One detail for each key: a value that fits no member of a union is reported once, with all that is allowed."""
    seen: dict[tuple[Any, ...], ErrorDetails] = {}
    for detail in details:
        first = seen.setdefault(detail["loc"][:2], detail)
        if first is not detail:
            first["msg"] += f" or {detail['msg'].removeprefix('Input should be ')}"
    return list(seen.values())


def _fault(path: Path, detail: ErrorDetails, overrides: Mapping[str, str], schema: type[ProblemConfig]) -> str:
    """One line: where, the key, what was read, what is allowed."""
    keys = [str(part) for part in detail["loc"]]
    key = ".".join(keys[:2] if keys and keys[0] in _tables(schema) else keys[:1])
    where = f"--{key.replace('_', '-')}" if key in overrides else f"{path}: {key}" if key else str(path)
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "extra_forbidden":
        known = [name for name, _ in fields(schema)] + ["space"]
        return f"{where}: unknown key{suggestion(key, known)}; the keys are listed by --help"
    if not keys:
        return f"{path}: {message}"
    return f"{where}: read {detail['input']!r}; {message[0].lower()}{message[1:]}"


def _tables(schema: type[ProblemConfig]) -> set[str]:
    return {name.split(".")[0] for name, _ in fields(schema) if "." in name}
