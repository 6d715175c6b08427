"""The input of a sweep's engine, in every mode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from raygpu.config import SweepConfig
from raygpu.engines.cluster.cluster import Cluster
from raygpu.engines.cluster.mps_daemons import Daemons
from raygpu.experiment import Source, Splits
from raygpu.records.run_directory import RunDirectory
from raygpu.records.trial_records import Records
from raygpu.search.samplers import Sampler
from raygpu.search.trials import EpochResult, Trial, TrialRecord


class Writer(Protocol):
    """The store of trials; every call returns at once."""

    delayed: str | None
    """Why nothing is delivered at present."""

    def begin(self, trial: Trial) -> None: ...

    def restart(self, trial: Trial) -> None: ...

    def place(self, trial_id: str, gpu_index: int, gpu_share: float) -> None: ...

    def tag(self, trial_id: str, tags: dict[str, Any]) -> None: ...

    def epochs(self, trial_id: str, results: list[EpochResult]) -> None: ...

    def end(self, record: TrialRecord) -> None: ...

    def gpu(self, elapsed_s: int, metrics: dict[str, float]) -> None: ...


@dataclass(frozen=True, slots=True)
class SweepContext:
    """A sweep that is ready to run."""

    config: SweepConfig
    source: Source
    splits: Splits | None
    sampler: Sampler
    cluster: Cluster
    records: Records
    writer: Writer
    folder: RunDirectory
    mps: Daemons
    say: Callable[[str], None]
    """Shows a line to the person."""
    arrays_s: dict[str, float] = field(default_factory=dict)
    """Seconds that arrays have taken, all of them together, by what for; empty in process mode."""
