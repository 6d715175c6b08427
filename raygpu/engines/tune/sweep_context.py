"""Input of a sweep's engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from raygpu.config import SweepConfig
from raygpu.config.source import Source
from raygpu.engines.cluster.cluster import Cluster
from raygpu.engines.cluster.mps_daemons import Daemons
from raygpu.errors import BadInput
from raygpu.experiment import Splits
from raygpu.planning.training_need import Need
from raygpu.records.run_directory import RunDirectory
from raygpu.records.timeline import Timeline
from raygpu.records.trial_records import Records
from raygpu.records.trial_writer import TrialWriter
from raygpu.search.samplers import Sampler
from raygpu.training.folds import Folds


@dataclass(frozen=True, slots=True)
class SweepContext:
    """Configuration and services of a sweep that is ready to run."""

    config: SweepConfig
    source: Source
    splits: Splits | None
    sampler: Sampler
    cluster: Cluster
    records: Records
    writer: TrialWriter
    timeline: Timeline
    folder: RunDirectory
    mps: Daemons
    say: Callable[[str], None]
    """Function that shows a line on the progress to the user."""
    warn: Callable[[str], None]
    """Function that shows a line to a user who wants to hear of faults alone, too."""
    detail: Callable[[str], None] | None
    """Function that shows a detail; None if nobody wants details."""
    leave: Callable[[Mapping[str, str]], None]
    """Function that writes the results and ends this process, for a sweep whose Ray is gone. Takes the URIs of trials'
    checkpoints by trial id; called in a thread of its own."""
    store_fault: Callable[[], BadInput | None] = lambda: None
    """Function that returns why the tracking store could not be opened, which ends the sweep; None if it could."""
    retry_failed: bool = False
    """Whether a resumed sweep trains its failed trials again, also if all others have ended."""
    arrays_s: dict[str, float] = field(default_factory=dict)
    """Seconds that all fused arrays together have taken, by activity."""
    folds: Folds | None = None
    """Pooled data of a cross-validation, which the workers get in place of `splits`; None without one."""
    read: frozenset[str] = frozenset()
    """Names of the hyper-parameters that the user's code reads."""
    needs: Mapping[tuple[str, bool], Need] = field(default_factory=dict)
    """Needs of one more training, by device type and by whether it is one of an array; absent without a profile."""
