"""The schemas of `conf/*.toml` but for a sweep's, one for each command."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from raygpu.config.population_section import require_rising
from raygpu.config.problem_schema import NAME_PATTERN, ScoredConfig, StoredConfig, TrialsConfig
from raygpu.config.sections import (
    ALTERNATING,
    ONE,
    PIPELINES,
    WAYS,
    CheckpointSection,
    ClusterSection,
    Way,
)
from raygpu.config.written_values import Values


def _listed(value: Any) -> str:
    """Check that whole numbers are given by commas, or auto. Raises ValueError."""
    words = [word.strip() for word in str(value).split(",")]
    if value != "auto" and not all(word.isdecimal() and int(word) > 0 for word in words):
        raise ValueError("allowed: auto, or whole numbers above 0 by commas, as in 4,8,12")
    return str(value)


Listed = Annotated[str, BeforeValidator(_listed)]
"""Whole numbers above 0 by commas, or auto."""


def _numbers(listed: str) -> tuple[int, ...] | None:
    return None if listed == "auto" else tuple(int(word) for word in listed.split(","))


class PackConfig(TrialsConfig, StoredConfig):
    """A measurement of how many trainings one GPU carries: a single draw of [space], at growing numbers at once."""

    COMMAND: ClassVar[str] = "pack"

    ways: str = "all"
    """Ways of sharing the GPU: all that exist here, or some of process, mps, fused, split, threads by commas."""
    most: Annotated[int, Field(ge=1)] = 377
    """Largest number of trainings at once."""
    numbers: Listed = "auto"
    """Trainings at once: auto (1, 2, 3, 5, 8, 13 ... while more gain), or these by commas, whether they gain or not."""
    rounds: Annotated[int, Field(ge=1)] = 3
    """Measurements of each point, and up to three times as many where they differ much; a point is their median. One
    round has no spread."""
    window_s: Annotated[float, Field(gt=0)] = 1.0
    """Seconds of one measurement, after a warm-up; longer where a step takes long."""
    workers: Literal["all"] | Annotated[int, Field(ge=1)] = "all"
    """--advise: devices of the data-parallel measurement, at most: all GPUs, or a number; without a GPU, processes that
    divide the CPU."""

    @field_validator("ways")
    @classmethod
    def _known_ways(cls, value: str) -> str:
        words = [word.strip() for word in value.split(",")]
        if value != "all" and (unknown := [word for word in words if word not in WAYS]):
            raise ValueError(f"{unknown[0]!r} is no way; allowed: all, or some of {', '.join(WAYS)} by commas")
        return value

    @property
    def chosen_numbers(self) -> tuple[int, ...] | None:
        """Requested numbers of trainings at once; None for auto."""
        return _numbers(self.numbers)

    @property
    def chosen_ways(self) -> tuple[Way, ...]:
        """Requested ways to share the GPU, in the order of `WAYS`."""
        words = [word.strip() for word in self.ways.split(",")]
        return tuple(way for way in WAYS if self.ways == "all" or way in words)


class PlaceConfig(StoredConfig):
    """A comparison of placements: the parts of one model on one device, or on several."""

    COMMAND: ClassVar[str] = "place"

    hyperparameters: Values = Field(default_factory=dict)
    """The hyper-parameters; also as flags, --hyperparameters.lr 0.1, with values as TOML has them."""
    placements: dict[Annotated[str, Field(pattern=NAME_PATTERN)], dict[str, Annotated[int, Field(ge=0)]]] = Field(
        default_factory=dict
    )
    """Placements to compare with one_device and alternating: the device of each part, a submodule or a layer, as in
    towers = { user_tower = 0, item_tower = 1 }. What is not named is on device 0."""
    devices: Literal["all"] | Annotated[int, Field(ge=2)] = "all"
    """Number of devices: all GPUs of this machine, but at least 2. Where GPUs are missing, logical devices share one
    GPU or the CPU."""
    rounds: Annotated[int, Field(ge=2)] = 5
    """Epochs that are timed of each placement, by turns, each after a warm-up."""
    stages: str = "auto"
    """torch: submodules with which the second and later stages of a pipeline begin, by commas; auto: a stage on each
    device, cut evenly by measured time; none: no pipeline."""
    micro_batches: Annotated[int, Field(ge=1)] = 4
    """Parts of a batch that follow each other through a pipeline."""
    memory_gib: Annotated[float, Field(gt=0)] | None = None
    """Memory of each device in GiB, which a placement may not exceed. Default: the device's own."""

    TABLE: ClassVar[str] = "hyperparameters"
    REFUSED: ClassVar[Mapping[str, str]] = {"space": "is for a search; a placement takes one set of [hyperparameters]"}

    @field_validator("placements")
    @classmethod
    def _not_reserved(cls, value: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
        if taken := [name for name in (ONE, ALTERNATING, *PIPELINES) if name in value]:
            raise ValueError(f"{taken[0]} is always there; choose another name")
        if empty := [name for name, parts in value.items() if not parts]:
            raise ValueError(f"{empty[0]} names no part, which is {ONE}; name a part and its device")
        return value

    @property
    def chosen_stages(self) -> tuple[str, ...] | None:
        """Requested beginnings of the second and later stages; None for auto, empty for no pipeline."""
        if self.stages in ("auto", "none"):
            return None if self.stages == "auto" else ()
        return tuple(word.strip() for word in self.stages.split(","))


def _source(values: dict[str, Any]) -> dict[str, Any]:
    """Check that the score in a training's source is a number, and the sweep's seed a whole one. Raises ValueError."""
    if isinstance(seed := values.get("data_seed", 0), bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise ValueError(f"data_seed: read {seed!r}; a whole number from 0 to before 2**32 is wanted")
    if isinstance(score := values.get("score", 0.0), bool) or not isinstance(score, int | float):
        raise ValueError(f"score: read {score!r}; a number is wanted")
    return values


class TrainConfig(ScoredConfig):
    """A production training: one set of hyper-parameters, data-parallel over all devices."""

    COMMAND: ClassVar[str] = "train"

    hyperparameters: Values = Field(default_factory=dict)
    """The hyper-parameters; also as flags, --hyperparameters.lr 0.1, with values as TOML has them."""
    changes: list[dict[str, Any]] = Field(default_factory=list)
    """Values that hyper-parameters have from an epoch on, [[changes]] epoch = 5, lr = 0.02; written by a sweep with a
    population."""
    source: Annotated[dict[str, Any], AfterValidator(_source)] = Field(default_factory=dict)
    """The sweep and the trial that they come from, its score, and the seed that draws the samples of data.fraction;
    written by a sweep."""
    workers: Literal["all"] | Annotated[int, Field(ge=1)] = "all"
    """Processes that train together: all, as many as the GPUs allow, or a number of them."""
    devices_per_worker: Annotated[int, Field(ge=1)] = 1
    """Keras: the devices of one worker, which MirroredStrategy drives; without a GPU, logical devices of the CPU."""
    global_batch: Annotated[int, Field(ge=1)] | None = None
    """Samples of an optimizer step, on all devices together. Default: batch_size x devices x accumulate."""
    accumulate: Annotated[int, Field(ge=1)] = 1
    """Parts in which each worker takes its share of a batch. Without global_batch, each has batch_size samples, so that
    the batch grows by this factor."""
    ratios: str = "equal"
    """Split of a batch over the devices: equal, auto (by their measured speeds, and again when these change), or
    numbers by commas in the order of the devices, as in 3,2."""
    loss_by_share: bool = False
    """Train on each device's loss of its own share where the loss is no mean over samples and returns neither Mean nor
    Sum, as one that compares samples with each other."""
    compile: bool = False
    """torch: compile the model (torch.compile)."""
    sharding: Literal["auto", "none", "full"] = "auto"
    """torch: none has the whole model on each device; full shards parameters, gradients and the optimizer's state over
    the devices (FSDP2); auto does so where they would leave little of a GPU's memory."""
    lr_scaling: Literal["none", "linear", "sqrt"] = "none"
    """Multiply the learning rate by global batch / batch_size, or by its root."""
    warmup_epochs: Annotated[float, Field(ge=0)] | None = None
    """Epochs over which the learning rate rises. Default: the hyper-parameter's; where the rate is scaled, 5 %."""
    max_failures: Annotated[int, Field(ge=0)] = 2
    """Number of times that the training goes on from its last checkpoint after a worker was lost."""
    registered_name: Annotated[str, Field(min_length=1)] | None = None
    """The name of the model in MLflow's registry, where it goes if it beats the trial's score; --register for short.
    MLflow allows no / and no : in it."""
    checkpoint: CheckpointSection = CheckpointSection()
    cluster: ClusterSection = ClusterSection()

    TABLE: ClassVar[str] = "hyperparameters"
    REFUSED: ClassVar[Mapping[str, str]] = {
        "space": "is for a search; a training has [hyperparameters]: take a sweep's best trial by --from runs/<sweep>"
    }

    @field_validator("changes")
    @classmethod
    def _changeable(cls, value: list[dict[str, Any]]) -> list[dict[str, Any]]:
        require_rising(value)
        return value

    @field_validator("registered_name")
    @classmethod
    def _registrable(cls, value: str | None) -> str | None:
        if value is not None and ("/" in value or ":" in value):
            raise ValueError("no / and no : is allowed in the name of a model, by MLflow")
        return value

    @field_validator("ratios", mode="before")
    @classmethod
    def _numbers(cls, value: Any) -> str:
        if value not in ("equal", "auto"):
            try:
                numbers = [float(word) for word in str(value).split(",")]
            except ValueError:
                numbers = [0.0]
            if not all(0 < number < math.inf for number in numbers):
                raise ValueError("allowed: equal, auto, or numbers above 0 by commas, as in 3,2")
        return str(value)

    @property
    def chosen_ratios(self) -> tuple[float, ...]:
        """Requested ratios of the devices' shares; empty for equal and auto."""
        return () if self.ratios in ("equal", "auto") else tuple(float(word) for word in self.ratios.split(","))


class BalanceConfig(TrainConfig):
    """A measurement of the best split of a training's batch over unequal devices."""

    COMMAND: ClassVar[str] = "balance"

    REFUSED: ClassVar[Mapping[str, str]] = {"space": "is for a search; a balance takes one set of [hyperparameters]"}

    batches: Listed = "auto"
    """Samples of each device in a step: auto (the configuration's global batch, split by measured speeds), or these by
    commas in the order of the devices, as in 512,355."""
    best_batch: bool = False
    """Search for the fastest global batch too, of at most a tenth of the training data: each device's is doubled from
    batch_size on while that gains. It changes the training; --lr-scaling linear or sqrt adapts the learning rate."""
    window_s: Annotated[float, Field(gt=0)] = 0.5
    """Seconds of one measurement of a device alone."""
    rounds: Annotated[int, Field(ge=2)] = 6
    """Measurements of each device at each batch, by turns, and the most turns of the trainings with balanced and with
    equal shares; half as many where these differ clearly."""
    turn_s: Annotated[float, Field(gt=0)] = 2.0
    """Seconds of one turn of the training with balanced shares, and of the one with equal shares."""

    @model_validator(mode="after")
    def _one_batch(self) -> BalanceConfig:
        if self.best_batch and (self.global_batch is not None or self.batches != "auto"):
            other = "batches" if self.batches != "auto" else "global_batch"
            raise ValueError(f"best_batch: the batch is given by {other} already; leave one of both out")
        return self

    @property
    def chosen_batches(self) -> tuple[int, ...] | None:
        """Requested samples of each device in a step; None for auto."""
        return _numbers(self.batches)
