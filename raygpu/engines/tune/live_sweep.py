"""Objects of a running sweep that its searcher and its callback share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ray import tune

from raygpu.engines.tune import trial_lines
from raygpu.engines.tune.array_config import ArrayConfig
from raygpu.engines.tune.oom_retry import RetryShares
from raygpu.engines.tune.sweep_checkpoints import SweepCheckpoints
from raygpu.engines.tune.sweep_context import SweepContext
from raygpu.planning.gpu_shares import Share
from raygpu.records.interrupts import Interrupts
from raygpu.search.trial_record import Status
from raygpu.search.trials import Trial
from raygpu.training.fused.groups import Grouper


@dataclass(frozen=True, slots=True)
class Overdue:
    """A Tune trial whose worker was killed because a limit of time was exceeded."""

    text: str
    """The limit and its value."""
    ends_members: bool
    """Whether all trials of an array fail by it, or go on in smaller parts."""


class LiveSweep:
    """Objects that a sweep's callback and searcher share, in this process alone.

    grouper: groups trials by signature; None in process mode. rule: Ray actor with the stopping rule, or None.
    Tune pickles a sweep's callbacks at its start and unpickles them to restore it. There is one sweep at a time in a
    process, so the pickle stands for the one that is running.
    """

    current: ClassVar[LiveSweep | None] = None

    def __init__(self, context: SweepContext, shares: RetryShares, grouper: Grouper | None, rule: Any) -> None:
        self.config = context.config
        self.sampler = context.sampler
        self.retry_failed = context.retry_failed
        self.records = context.records
        self.writer = context.writer
        self.timeline = context.timeline
        self.cluster = context.cluster
        self.say, self.warn, self.detail = context.say, context.warn, context.detail
        self.leave, self.store_fault = context.leave, context.store_fault
        self.shares = shares
        self.grouper = grouper
        self.rule = rule
        self.population: Any = None
        """Ray actor with the population; None for a sweep without one."""
        self.run_directory = context.folder
        self.seconds = context.arrays_s
        """Seconds that fused arrays have taken so far, by activity."""
        self.trials: dict[str, Trial] = {}
        """All trials drawn so far, by id."""
        self.enlarged: dict[str, tuple[str, Share, str | None]] = {}
        """Trials that have just run out of memory: device type, share and checkpoint of their next run, by trial id."""
        self.resources: Callable[[dict[str, Any]], tune.PlacementGroupFactory] | None = None
        """Function that returns the resources that a Tune trial requests from Ray, by its config."""
        self.take_back: Callable[[Mapping[str, ArrayConfig]], None] | None = None
        """Searcher's `take_back`; None unless the sweep is resumed."""
        self.pids: dict[str, int] = {}
        """Pid of the process in which each trial that is trained alone last ran."""
        self.checkpoints = SweepCheckpoints(context.folder.tune)
        self.ending: dict[str, tuple[Status, str | None]] = {}
        """Status and reason of trials alone that have reported their end, and save their last checkpoint."""
        self.losses: dict[str, int] = {}
        """Workers lost so far, by the id of the first trial of those that they trained."""
        self.given_again: set[str] = set()
        """Tune trials that Tune has given up, and whose trials go on in another one, by Tune's trial id."""
        self.overdue: dict[str, Overdue] = {}
        """Tune trials that were ended by a limit of time, by Tune's trial id, until their end is recorded."""
        self.interrupts = Interrupts()
        """Ctrl-C and SIGTERM so far, while Tune runs."""
        self.lost_actor: str | None = None
        """Line on a lost actor of the stopping rule or of the population, without which no trial can go on."""
        self.is_over = False
        """Whether Tune is to end its run after this step, whatever is left."""
        self.at_once = 1
        """Number of trials alone that run at once."""
        self.unknown_metric: str | None = None
        """Message set if the first report of the sweep lacks the metric, which ends the sweep; None otherwise."""
        LiveSweep.current = self

    @property
    def is_resumed(self) -> bool:
        """Whether the sweep goes on from a saved state."""
        return self.take_back is not None

    @property
    def stopping(self) -> bool:
        """Whether the sweep is to stop so that it can go on: after an interrupt or its time budget, because its first
        trials failed, because the tracking store cannot be opened, or because an actor was lost."""
        without_hope = self.records.hopeless is not None or self.store_fault() is not None
        without_hope = without_hope or self.lost_actor is not None
        return bool(self.interrupts.count) or self.records.out_of_time or without_hope

    def is_complete(self, name: str) -> bool:
        """Return whether a trial has finished or was stopped early."""
        record = self.records.by_id.get(name)
        return record is not None and record.is_complete

    def running_pids(self) -> set[int]:
        """Return the pids of the processes in which trials run alone."""
        running = {name for name, record in list(self.records.by_id.items()) if record.status == "running"}
        return {pid for name, pid in list(self.pids.items()) if name in running}

    def count_loss(self, trial_id: str) -> None:
        """Count a lost worker, by the first trial of those that it trained."""
        self.losses[trial_id] = self.losses.get(trial_id, 0) + 1

    def may_go_on(self, trial_id: str) -> bool:
        """Return whether a trial has lost no more workers than `cluster.max_failures` allows.

        Tune counts lost workers itself. But it gives a trial up at once if its worker is lost while it takes the trial
        over, for then Tune hears of the loss twice.
        """
        return self.losses.get(trial_id, 0) <= self.config.cluster.max_failures

    def enlarge(self, config: ArrayConfig) -> None:
        """Prepare another run, with a larger share, of a trial that ran out of memory; no effect if there is none."""
        trial = self.trials[config.trial_ids[0]]
        device_share = self.shares.enlarge(trial, config.device, config.share)
        self.tag_too_small(trial.trial_id)
        if device_share is None:
            return
        device, larger = device_share
        self.writer.tag(trial.trial_id, {"raygpu.gpu_share": larger.fraction})
        copy = self.checkpoints.copy(trial.trial_id, len(self.shares.too_small(trial.trial_id)))
        self.enlarged[trial.trial_id] = device, larger, copy
        self.records.out_of_memory += 1
        if self.detail is not None:
            parts = str(config.share.part), str(larger.part)
            self.detail(trial_lines.enlarged(trial.trial_id, *parts, from_checkpoint=copy is not None))

    def tag_too_small(self, name: str) -> None:
        """Tag a trial's run with the shares in which it ran out of memory, if there are any."""
        if too_small := ", ".join(f"1/{small.trials_per_gpu}" for _, small in self.shares.too_small(name)):
            self.writer.tag(name, {"raygpu.out_of_memory": too_small})

    def interrupted(self, folder: Path, *, keep_all: bool) -> dict[str, str]:
        """Extract the checkpoints of interrupted trials from their arrays' into `folder`; return the paths by trial id.

        keep_all: extract all interrupted trials; otherwise only the best trial so far, if it was interrupted.
        """
        ranked = self.records.ranked()
        chosen = ranked if keep_all else ranked[:1]
        if not self.records.repetition.is_single and self.config.keep != "all":
            chosen = [record for each in self.records.sets()[:1] for record in each.scored]
        names = [record.trial.trial_id for record in chosen if not record.ended]
        if self.records.scoring.score_rule == "best":  # the kept parameters are those of the score
            names = [name for name in names if not self.checkpoints.is_kept(name)]
        return self.checkpoints.extract(names, folder, self.warn)

    def __reduce__(self) -> tuple[Callable[[], LiveSweep], tuple[()]]:
        return _current, ()


def _current() -> LiveSweep:
    assert LiveSweep.current is not None
    return LiveSweep.current
