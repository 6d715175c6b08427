"""Settings that all arrays of a sweep have in common, sent to the workers through Ray's object store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raygpu.config.sections import Precision
from raygpu.config.source import Source
from raygpu.devices.mps import Access
from raygpu.engines.tune.array_config import ArrayConfig
from raygpu.engines.tune.population_actor import PopulationSettings
from raygpu.planning.gpu_shares import DevicePlan, Plan
from raygpu.planning.training_need import Need
from raygpu.records.activity import Activity
from raygpu.search.scoring import Scoring
from raygpu.search.trials import EpochResult, Trial, joint_rate
from raygpu.storage import Storage


@dataclass(frozen=True, slots=True)
class ArraySettings:
    """Settings of arrays that are fused, or split in split mode."""

    plan: Plan
    width: int | None
    """Number of members that step as one program, or of logical devices in split mode; None to measure it."""
    host_memory_gib: Mapping[str, float]
    """Host memory for an array that trains on a CPU, by device type."""
    mean_epochs: float
    """Mean number of epochs of a trial, early stops included."""
    profiles: str | None = None
    """Folder of kept profiles, beside which measured widths and compiled steps are kept; None for the user's cache."""


@dataclass(frozen=True, slots=True)
class SharedSettings:
    """Settings of a sweep for its workers."""

    source: Source
    scoring: Scoring
    epochs: int | None
    precision: Precision
    alone: Plan
    """Plan for trials that are trained alone."""
    fused: ArraySettings | None
    """None in process mode."""
    trials: Mapping[str, Trial]
    """All trials of the sweep, by id, if they were known at its start; else empty."""
    keep_all: bool
    """Whether the parameters of every trial are kept, or only the best trial's."""
    rule: Any
    """Ray actor with the stopping rule; None for no rule."""
    decision_epochs: frozenset[int] | None
    """Epochs at which the stopping rule decides; None for every epoch."""
    stop_reason: str
    """Reason recorded for a trial that the rule stops."""
    population: PopulationSettings | None
    """None for a sweep whose trials keep their values."""
    trial_files: Storage
    """Storage for the own files of functions and scripts, with a folder for each trial."""
    checkpoint_s: float
    memory_gib: Mapping[str, float | None]
    """Memory of a whole device in GiB, by device type; each trial is limited to its share. None for no limit."""
    mps: Mapping[str, Access]
    """MPS daemons by the GPU's UUID; empty where trials take turns on their GPU."""
    folds: int | None = None
    """Number of folds of the cross-validation; None without one."""
    needs: Mapping[tuple[str, bool], Need] = field(default_factory=dict)
    """Needs of one more training, by device type and by whether it is one of an array; absent without a profile."""

    @property
    def run(self) -> str:
        """Name of the sweep."""
        return self.trial_files.uri.rstrip("/").split("/")[-2]

    def part(self, config: ArrayConfig) -> DevicePlan:
        """Return the placement of an array, with its own share."""
        return part_of(config, self.alone, self.fused.plan if self.fused is not None else None)

    def activity(
        self, config: ArrayConfig, trials: tuple[str, ...], epochs: Iterable[Sequence[EpochResult]]
    ) -> Activity:
        """Return what a worker trains. trials: those of its array that are under way. epochs: new ones of each."""
        need = self.needs.get((config.device, config.fused))
        return Activity(self.run, trials, float(config.share.part), joint_rate(epochs), need)

    def mps_environment(self, config: ArrayConfig, gpu_ids: Sequence[Any]) -> dict[str, str]:
        """Return the variables that make a worker on these GPUs a client of its GPU's MPS daemon; empty without one."""
        access = next((self.mps[gpu_id] for gpu_id in map(str, gpu_ids) if gpu_id in self.mps), None)
        if access is None:
            return {}
        memory_gib = self.memory_gib[self.part(config).device]
        return access.environment(config.share.fraction, memory_gib and config.share.fraction * memory_gib)


def part_of(config: ArrayConfig, alone: Plan, fused: Plan | None) -> DevicePlan:
    """Return the placement of an array, with its own share. alone, fused: plans of trials alone, and of fused ones."""
    if not config.fused:
        return alone.on(config.device).resized(config.share)
    assert fused is not None
    return fused.on(config.device)
