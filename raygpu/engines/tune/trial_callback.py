"""Tune callbacks that pass a sweep's events to raygpu's records and to MLflow, without blocking Tune's event loop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, ClassVar

from ray import tune

from raygpu.engines.tune.stopping import RuleScheduler
from raygpu.engines.tune.sweep_context import SweepContext
from raygpu.engines.tune.trial_shares import Shares
from raygpu.engines.tune.trial_trainable import device_of, share_of, trial_of
from raygpu.planning.gpu_shares import Share
from raygpu.search.trials import Trial
from raygpu.storage import Storage, StorageError

logger = logging.getLogger(__name__)
ENLARGED = "enlarged"
"""Folder, within Tune's, for the last checkpoints of trials that ran out of memory and go on with a larger share."""


class LiveSweep:
    """Objects that a sweep's callback and searcher share, in this process alone.

    Tune pickles a sweep's callbacks at its start and unpickles them to restore it. There is one sweep at a time in a
    process, so the pickle stands for the one that is running.
    """

    current: ClassVar[LiveSweep | None] = None

    def __init__(self, context: SweepContext, shares: Shares) -> None:
        self.records = context.records
        self.writer = context.writer
        self.cluster = context.cluster
        self.shares = shares
        self.scratch = context.folder.tune / ENLARGED
        self.enlarged: dict[str, tuple[str, Share, str | None]] = {}
        """Trials that have just run out of memory: device type, share and checkpoint of their next run, by trial id."""
        self.resources: Callable[[dict[str, Any]], tune.PlacementGroupFactory] | None = None
        """Function that returns the resources that a Tune trial requests from Ray, by its config."""
        self.pids: dict[str, int] = {}
        """Pid of the process in which each trial last ran."""
        self.checkpoints: dict[str, str] = {}
        """URI of each trial's last checkpoint."""
        self.unknown_metric: str | None = None
        """Message set if the first report of the sweep lacks the metric, which ends the sweep; None otherwise."""
        LiveSweep.current = self

    def running_pids(self) -> set[int]:
        """Return the pids of the running trials' processes."""
        running = {name for name, record in list(self.records.by_id.items()) if record.status == "running"}
        return {pid for name, pid in list(self.pids.items()) if name in running}

    def enlarge(self, trial: Trial, device: str, share: Share, checkpoint: str | None) -> None:
        """Prepare another run, with a larger share, of a trial that ran out of memory; no effect if there is none.

        device: device type that the trial ran on. checkpoint: URI of the trial's last checkpoint, if it has one.
        """
        found = self.shares.enlarge(trial, device, share)
        too_small = ", ".join(f"1/{small.trials_per_gpu}" for _, small in self.shares.too_small(trial.trial_id))
        self.writer.tag(trial.trial_id, {"raygpu.out_of_memory": too_small})
        if found is None:
            return
        device, larger = found
        self.writer.tag(trial.trial_id, {"raygpu.gpu_share": larger.fraction})
        kept = None
        if checkpoint is not None and Storage(checkpoint).is_dir():  # Tune deletes it once it saves the trial's end
            again = self.scratch / f"{trial.trial_id}-{len(self.shares.too_small(trial.trial_id))}"
            try:
                Storage(checkpoint).copy_to(again)
                kept = self.checkpoints[trial.trial_id] = again.uri
            except (OSError, StorageError):
                logger.exception("the checkpoint of trial %s, which begins anew", trial.trial_id)
        self.enlarged[trial.trial_id] = device, larger, kept
        self.records.out_of_memory += 1

    def __reduce__(self) -> tuple[Callable[[], LiveSweep], tuple[()]]:
        return _current, ()


def _current() -> LiveSweep:
    assert LiveSweep.current is not None
    return LiveSweep.current


class ResourceUpdate(tune.Callback):
    """Update the resource requests of a resumed sweep's trials: Tune keeps those made to an earlier Ray."""

    def __init__(self, live: LiveSweep) -> None:
        self.live = live
        self._done = False

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Update the requests of all pending trials, at Tune's first step only."""
        if self._done or self.live.resources is None:
            return
        self._done = True
        for trial in trials:
            if trial.status == "PENDING":
                wanted = self.live.resources(trial.config)
                if wanted != trial.placement_group_factory:
                    trial.update_resources(wanted)


class TrialCallback(tune.Callback):
    """Tune callback that keeps the records of trials and writes them to MLflow.

    Its saved state gives a resumed sweep the finished trials and the scores that the stopping rule has seen, which
    `Tuner.restore` alone forgets (ray-project/ray#30838).
    """

    def __init__(self, live: LiveSweep, scheduler: RuleScheduler | None, stop_reason: str) -> None:
        self.live = live
        self.scheduler = scheduler
        self.stop_reason = stop_reason

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Start the trial's record, and begin or restart its MLflow run."""
        started = trial_of(trial.config)
        self.live.records.hold(trial.trial_id)
        known = self.live.records.by_id.get(started.trial_id)
        self.live.records.start(started)
        if known is not None and known.ended:
            self.live.writer.restart(started)
        else:
            self.live.writer.begin(started)  # also one that goes on: its run is running again

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Record and log the trial's new epochs; enlarge its share if it ran out of memory."""
        trial_id = trial.config["trial_id"]
        if result["unknown_metric"] is not None:
            if not self.live.records.any_scored():
                self.live.unknown_metric = result["unknown_metric"]
            return
        self.live.pids[trial_id] = result["pid"]
        placed_before = self.live.records.by_id[trial_id].gpu_index
        gpu_index = self.live.cluster.device_index(result["node_id"], result["gpu_ids"])
        new = self.live.records.add(trial_id, result["epochs"], gpu_index, result["best"])
        self._charge(trial)
        if gpu_index is not None and gpu_index != placed_before:
            self.live.writer.place(trial_id, gpu_index, share_of(trial.config).fraction)
        if new:
            self.live.writer.epochs(trial_id, new)
        # Told and kept: Tune need not carry the epochs in its own snapshots.
        result["epochs"] = []
        if result["out_of_memory"]:
            last = self.live.checkpoints.get(trial_id)
            self.live.enlarge(trial_of(trial.config), device_of(trial.config), share_of(trial.config), last)

    def _charge(self, trial: Any) -> None:
        """Charge the trial for the GPU time since the last charge."""
        trial_id = trial.config["trial_id"]
        record = self.live.records.by_id.get(trial_id)
        if record is not None:
            share = share_of(trial.config).fraction
            self.live.records.charge(trial.trial_id, [trial_id], record.gpu_index, share)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """End the trial's record and MLflow run, unless the trial goes on with a larger share."""
        result = trial.last_result or {}
        trial_id = trial.config["trial_id"]
        if self.live.enlarged.pop(trial_id, None) is not None:  # the searcher gives it again
            return
        if trial_id not in self.live.records.by_id or self.live.unknown_metric is not None:
            return
        self._charge(trial)
        if (error := result.get("failure") or result.get("unknown_metric")) is not None:
            record = self.live.records.end(trial_id, "failed", error=error)
        elif result.get("ended"):
            record = self.live.records.end(trial_id, "finished")
        else:
            epochs = self.live.records.by_id[trial_id].epochs
            record = self.live.records.end(trial_id, "stopped", reason=f"{self.stop_reason} at epoch {epochs}")
        self.live.writer.end(record)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """End the trial as failed: its worker was lost more often than `cluster.max_failures` allows."""
        trial_id = trial.config["trial_id"]
        if trial_id not in self.live.records.by_id:  # lost before it had begun
            started = trial_of(trial.config)
            self.live.records.start(started)
            self.live.writer.begin(started)
        self.live.writer.end(
            self.live.records.end(trial_id, "failed", error=str(trial.get_error() or "the worker was lost"))
        )

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Count the retry after a lost worker, and charge the trial for its time."""
        self.live.records.retries += 1
        self._charge(trial)

    def on_checkpoint(self, iteration: int, trials: list[Any], trial: Any, checkpoint: Any, **info: Any) -> None:
        """Note the URI of the trial's last checkpoint, unless the trial failed."""
        if not (trial.last_result or {}).get("failure"):  # nothing goes on from the end of a trial that failed
            folder = self.live.scratch.beside(checkpoint.path)
            self.live.checkpoints[trial.config["trial_id"]] = folder.uri

    def get_state(self) -> dict[str, Any]:
        """Return the records, the checkpoints and the stopping rule for a resumed sweep."""
        return {
            "records": self.live.records.state(),
            "checkpoints": self.live.checkpoints,
            "rule": self.scheduler.rule if self.scheduler is not None else None,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the saved state; called by a resumed sweep before any trial starts."""
        self.live.records.restore(state["records"])
        self.live.checkpoints = state["checkpoints"]
        if self.scheduler is not None:
            self.scheduler.rule = state["rule"]
