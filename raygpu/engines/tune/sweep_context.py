"""The input of a sweep's engine, in every mode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from raygpu.config import SweepConfig
from raygpu.engines.cluster.cluster import Cluster
from raygpu.engines.cluster.mps_daemons import Daemons
from raygpu.engines.tune.tune_callback import Writer
from raygpu.experiment import Source, Splits
from raygpu.runs.run_directory import RunFolder
from raygpu.runs.trial_records import Records
from raygpu.search.samplers import Proposer


@dataclass(frozen=True, slots=True)
class Work:
    """A sweep that is ready to run."""

    config: SweepConfig
    source: Source
    splits: Splits | None
    proposer: Proposer
    cluster: Cluster
    records: Records
    writer: Writer
    folder: RunFolder
    mps: Daemons
    say: Callable[[str], None]
    """Shows a line to the person."""
    arrays_s: dict[str, float] = field(default_factory=dict)
    """Seconds that arrays have taken, all of them together, by what for; empty in process mode."""
