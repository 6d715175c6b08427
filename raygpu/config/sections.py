"""The tables of `conf/*.toml`: each a frozen model in which unknown keys are faults, and every field is documented."""

from __future__ import annotations

import itertools
import os
import re
from fractions import Fraction
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from raygpu.errors import HIDDEN, BadInput, redacted

Direction = Literal["max", "min"]
Precision = Literal["float32", "tf32", "bf16", "fp16"]
Way = Literal["process", "mps", "fused", "split", "threads"]
"""Way in which trainings share a GPU: processes side by side, the same under CUDA MPS, one array of models, one
TensorFlow process with a logical device for each, or threads of one process."""
Algorithm = Literal["random", "qmc", "grid", "tpe", "gp", "cmaes", "nsgaii"]
LEARNING: tuple[Algorithm, ...] = ("tpe", "gp", "cmaes", "nsgaii")
"""Search algorithms of Optuna, which draw trials by the results of earlier ones."""
ONE = "one_device"
"""Placement of all parts of a model on device 0, with which others are compared."""
ALTERNATING = "alternating"
"""Placement of a model's smallest parts on one device after the other, which needs the most copies."""
PIPELINES = {"pipeline_gpipe": "gpipe", "pipeline_1f1b": "1f1b"}
"""Placements of a model's stages on one device after the other, with micro-batches; each with its schedule."""
WAYS: tuple[Way, ...] = get_args(Way)
OWN_RAY = "local"
"""Address for a Ray of the run's own, in place of a cluster's."""
ROUNDED = 0.015
"""Relative error of fractions that a person rounds: 0.33 is a third, 0.66 two thirds."""
URI_VARIABLE = "MLFLOW_TRACKING_URI"
METRIC_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,99}")


class Section(BaseModel):
    """A table of the file: frozen, and unknown keys are faults."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _require_no_truth(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true and false where a number is wanted, which pydantic takes for 1 and 0."""
        wanted = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and not _takes(wanted, bool) and (_takes(wanted, int) or _takes(wanted, float)):
            raise ValueError("a number is wanted")
        return value


def _takes(annotation: Any, kind: type) -> bool:
    """Return whether a type is this kind, or a union or an annotated one of it."""
    return annotation is kind or any(_takes(each, kind) for each in get_args(annotation))


class DataSection(Section):
    """The data of the trials, and the part of it to train on."""

    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Train on a seeded, stratified part of the training data: 0.2 is a fifth. Validation data stays whole."""
    samples_per_epoch: Annotated[int, Field(ge=2)] | None = None
    """Training samples of an epoch, after which a trial is evaluated and reports: fewer than there are for a large data
    set, several times as many for a small one. Epochs follow each other through the data. Default: one pass."""
    synthetic: bool = False
    """Made-up data of the same shapes, to measure speed offline; scores mean nothing."""


def _expression(text: str) -> str:
    """Check a regular expression with one group. Raises ValueError."""
    try:
        groups = re.compile(text).groups
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"no regular expression: {error}") from error
    if groups != 1:
        advice = r"one in (...) is wanted, around the number; other parentheses are (?:...) or \("
        raise ValueError(f"has {groups or 'no'} group{'s' * (groups != 1)}; {advice}")
    return text


Expression = Annotated[str, AfterValidator(_expression)]
"""Regular expression with a single group, which matches a number."""


class ScriptSection(Section):
    """A script that `command` starts: the metrics in its output, and its working folder."""

    metrics: dict[str, Expression] = Field(default_factory=dict)
    """Metrics by name, each with a regular expression whose single group is the number in a line of the output:
    { accuracy = 'Accuracy: ([0-9.]+)' }."""
    folder: Literal["own", "shared"] = "own"
    """Working folder of the script. own: a folder of the trial, which looks like the one that the command is written
    for. shared: that folder itself, for all trials."""

    @field_validator("metrics", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            raise ValueError("a table is wanted, as in { accuracy = 'Accuracy: ([0-9.]+)' }")
        for name in value:
            if not METRIC_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no metric's name; allowed: letters, digits and _ . / -, as in test/loss")
        return value


def _start_tables(value: Any) -> Any:
    """Check that tables are given. Raises ValueError."""
    if not isinstance(value, list | tuple) or not all(isinstance(table, dict) and table for table in value):
        raise ValueError("tables are wanted, as in [[start]] and, below it, lr = 0.1")
    return value


StartTables = Annotated[tuple[dict[str, Any], ...], BeforeValidator(_start_tables)]
"""Sets of hyper-parameters, each a table of its own."""


class SearchSection(Section):
    """The choice of hyper-parameters."""

    algorithm: Algorithm = "random"
    """random: drawn from [space]. qmc: drawn evenly, a scrambled Sobol sequence. grid: every combination. tpe, gp,
    cmaes, nsgaii: Optuna's samplers, which learn from earlier results."""
    generation: Annotated[int, Field(ge=1)] | None = None
    """tpe, gp, cmaes, nsgaii: trials asked for at once, before their results are told. Wider is faster and learns less.
    Default: 8; of tpe an eighth of the trials before, once that is more, up to 64; of tpe and gp none in process mode
    without racing: each trial is drawn by all results so far, so that another run may draw other trials."""

    @property
    def learns(self) -> bool:
        """Whether the search draws trials by the results of earlier ones."""
        return self.algorithm in LEARNING


class StoppingSection(Section):
    """The rule that ends a trial before its last epoch."""

    algorithm: Literal["none", "halving", "hyperband", "median"] = "none"
    """halving: ASHA. hyperband: ASHA in several brackets of trials, each with a later first rung, for scores that show
    late. median: stop below the median of the other trials' running means."""
    grace_epochs: Annotated[int, Field(ge=1)] = 1
    """No trial is stopped before this many epochs."""
    reduction: Annotated[float, Field(ge=1.1)] = 3.0
    """halving, hyperband: one trial in this many survives each rung; rungs lie at grace_epochs x reduction^k."""
    brackets: Annotated[int, Field(ge=1)] | None = None
    """hyperband: number of brackets, those with the earliest first rungs. Default: all, one of which stops no trial."""
    min_trials: Annotated[int, Field(ge=1)] = 3
    """median: no trial is stopped before this many others have results."""
    patience: Annotated[int, Field(ge=1)] | None = None
    """Also stop a trial whose score has not improved for this many epochs, or reports, those without the metric
    included. Default: never."""
    min_delta: Annotated[float, Field(ge=0)] = 0.0
    """patience: the least by which a score has to be better to count as improved."""


class DevicesSection(Section):
    """The GPUs, and the precision."""

    devices: str = "all"
    """GPUs of this machine: all, or indices (nvidia-smi's) and UUIDs separated by commas, as in 0,GPU-8a1b."""
    precision: Precision = "float32"
    """float32, tf32 (float32 with TF32 convolutions and matrix products), or automatic mixed precision: bf16, or for
    GPUs without it fp16, with dynamic loss scaling. A function or a script sets its own."""


class GpuSection(DevicesSection):
    """The way in which trials share the GPUs."""

    mode: Literal["auto", "process", "fused", "split"] = "auto"
    """process: one process per trial, packed on fractions of a GPU. fused: torch trials of one signature train as one
    array of models; the others as in process mode. split: Keras trials share a process, each on a logical device.
    auto: what is fastest here by a kept profile (python -m raygpu.pack) or, where that repays, a probe in the sweep; a
    short sweep trains as arrays where it can."""
    width: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
    """fused: how many members of an array step as one program; auto measures it when the array starts. split: the
    number of logical devices."""
    fraction: Literal["auto"] | float = "auto"
    """The share of a GPU that a trial or an array asks for, snapped to 1/N; or a whole number of GPUs per trial."""
    memory_limit: bool = True
    """Hold every trial with a part of a GPU (a script under MPS alone) to this part of its memory: past it, that trial
    runs out of memory, and runs again with more. Without a GPU, of the host's memory."""
    mps: Literal["auto", "on", "off"] = "auto"
    """Pack processes under CUDA MPS, in which their kernels run at the same time; auto: where a gain was measured."""

    @field_validator("fraction", mode="before")
    @classmethod
    def _whole_or_part(cls, value: Any) -> Any:
        if value == "auto":
            return value
        try:
            number = -1.0 if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = -1.0
        if 0.001 <= number <= 1 or (1 < number < 1e6 and number == int(number)):
            return number
        raise ValueError('allowed: "auto", a fraction from 0.001 to 1, or a whole number of GPUs')


def completed(uri: str) -> str:
    """Return a tracking URI that was kept without its password with the password from the environment. Raises
    BadInput."""
    if uri != redacted(uri) or HIDDEN not in uri:
        return uri
    environment_uri = os.environ.get(URI_VARIABLE, "")
    if redacted(environment_uri) == uri:
        return environment_uri
    raise BadInput(f"tracking.uri: read {uri!r}: passwords are not kept; set {URI_VARIABLE} to the whole of it")


class TrackingSection(Section):
    """The MLflow store of the runs."""

    enabled: bool = True
    """Log every trial to MLflow."""
    uri: str = "sqlite:///runs/mlflow.db"
    """The MLflow tracking store: sqlite:///FILE, postgresql://..., or http(s)://SERVER. Where none is given and
    MLFLOW_TRACKING_URI is set, it is that one."""
    experiment: Annotated[str, Field(min_length=1)] = "raygpu"
    """The MLflow experiment that the sweep's runs go to."""
    patience_s: Annotated[float, Field(ge=0)] = 60.0
    """Seconds for which a store may take nothing at the end of a run before it is given up; while it takes writes, they
    are waited for, however long that takes."""

    def found(self) -> Self:
        """Return the section with the URI in effect: the environment's, or a kept one with its password. Raises
        BadInput."""
        is_configured = "uri" in self.model_fields_set
        uri = completed(self.uri) if is_configured else os.environ.get(URI_VARIABLE) or self.uri
        return self.model_copy(update={"uri": uri})


class ClusterSection(Section):
    """The Ray cluster of the run."""

    address: str = OWN_RAY
    """local: a Ray of this run's own, on this machine. auto or HOST:PORT: a Ray cluster that runs already."""
    max_gpus: Annotated[float, Field(ge=0.001)] | None = None
    """The most GPUs that the run reserves at once, of those that it shares with others; 0.5 is half of one."""
    min_gpus: Annotated[int, Field(ge=0)] = 0
    """GPUs that a cluster is to have before anything is planned; its autoscaler is asked for those that it lacks."""
    wait_s: Annotated[float, Field(gt=0)] = 900.0
    """Seconds to wait for these GPUs."""

    @model_validator(mode="after")
    def _of_a_cluster(self) -> Self:
        if self.is_local and self.min_gpus:
            raise ValueError("min_gpus is for a cluster that runs already; address: auto or HOST:PORT")
        return self

    @property
    def is_local(self) -> bool:
        """Whether the run starts a Ray of its own."""
        return self.address == OWN_RAY

    @property
    def most_gpus(self) -> Fraction | None:
        """Exact value of `max_gpus`: the simplest fraction that it rounds, such as a third for 0.33; None without
        it."""
        if self.max_gpus is None:
            return None
        near = (Fraction(self.max_gpus).limit_denominator(parts) for parts in itertools.count(1))
        return next(candidate for candidate in near if abs(candidate - self.max_gpus) <= ROUNDED * self.max_gpus)


class SweepClusterSection(ClusterSection):
    """The Ray cluster of a sweep."""

    max_failures: Annotated[int, Field(ge=0)] = 2
    """Number of times that a trial goes on from its checkpoint after its worker was lost (killed, out of memory, node
    gone)."""


class CheckpointSection(Section):
    """The checkpoints of a production training, to go on from."""

    epochs: Annotated[int, Field(ge=1)] = 1
    """Epochs between two checkpoints."""
    minutes: Annotated[float, Field(gt=0)] | None = None
    """Minutes after which a checkpoint is written in between, within an epoch too."""
    keep: Annotated[int, Field(ge=1)] = 2
    """Number of latest checkpoints that stay; the one with the best score stays beside them."""
