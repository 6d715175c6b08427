"""Tune callback that passes the events of arrays to the records and MLflow runs of their members."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import ray
from ray import tune

from raygpu.engines.tune.array_checkpoint import MEMBERS, extract, under_way
from raygpu.engines.tune.sweep_context import SweepContext
from raygpu.engines.tune.trial_callback import LiveSweep
from raygpu.engines.tune.trial_shares import Shares
from raygpu.engines.tune.trial_trainable import device_of, share_of
from raygpu.search.trials import Trial
from raygpu.storage import Storage, StorageError
from raygpu.training.fused.groups import Grouper

logger = logging.getLogger(__name__)


class LiveArrays(LiveSweep):
    """Objects that the searcher and the callback of arrays share, in this process alone.

    fuser: groups trials by signature. rule: Ray actor with the stopping rule, or None.
    """

    def __init__(self, context: SweepContext, shares: Shares, fuser: Grouper, rule: Any) -> None:
        super().__init__(context, shares)
        self.fuser = fuser
        self.rule = rule
        self.say = context.say
        self.seconds = context.arrays_s
        """Seconds that arrays have taken so far, by activity."""
        self.trials: dict[str, Trial] = {}
        """All trials drawn so far, by id."""
        self.arrays: dict[str, str] = {}
        """URI of the last checkpoint of each trial's array, for trials that were under way in it."""

    def interrupted(self, folder: Path, *, keep_all: bool) -> dict[str, str]:
        """Extract the checkpoints of interrupted trials from their arrays' into `folder`; return the paths by trial id.

        keep_all: extract all interrupted trials; otherwise only the best trial so far, if it was interrupted.
        """
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier interruption
        ranked = self.records.ranked()
        chosen = ranked if keep_all else ranked[:1]
        by_array: dict[str, dict[str, Path]] = {}
        kept = self.checkpoints if self.records.scoring.which == "best" else {}  # of best epochs, also of who goes on
        for name in [record.trial.trial_id for record in chosen if not record.ended]:
            if name not in kept and name in self.arrays and Storage(self.arrays[name]).is_dir():
                by_array.setdefault(self.arrays[name], {})[name] = folder / name
                (folder / name).mkdir(parents=True)
        for source, folders in by_array.items():
            with Storage(source).fetched() as checkpoint:
                extract(checkpoint, folders)
        return {name: str(path) for folders in by_array.values() for name, path in folders.items()}


class ArrayCallback(tune.Callback):
    """Tune callback that keeps the records of arrays' members and writes them to MLflow.

    Its saved state gives a resumed sweep the records, the checkpoints and the stopping rule's scores.
    """

    def __init__(self, live: LiveArrays) -> None:
        self.live = live

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Start the members' records, and begin or restart their MLflow runs."""
        self.live.records.hold(trial.trial_id)
        for name in trial.config["trial_ids"]:
            known = self.live.records.by_id.get(name)
            if known is not None and known.status in ("finished", "stopped"):
                continue  # its array goes on without it
            started = self.live.trials[name]
            self.live.records.start(started)
            if known is not None and known.ended:
                self.live.writer.restart(started)
            else:
                self.live.writer.begin(started)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Record and log the members' new epochs and ends; retrain members alone, or enlarge a share, if needed."""
        live = self.live
        for line in result["lines"]:
            live.say(f"{trial.config['array_id']}: {line}")
        for what, seconds in result["seconds"].items():
            live.seconds[what] = live.seconds.get(what, 0.0) + seconds
        if result["unknown_metric"] is not None:
            if not live.records.any_scored():
                live.unknown_metric = result["unknown_metric"]
            return
        gpu_index = live.cluster.device_index(result["node_id"], result["gpu_ids"])
        share = share_of(trial.config).fraction / max(1, len(trial.config["trial_ids"]))
        live.records.charge(trial.trial_id, trial.config["trial_ids"], gpu_index, share_of(trial.config).fraction)
        for report in result["members"]:
            record = live.records.by_id[report.trial_id]
            if record.ended:
                continue  # told before its worker was lost
            if gpu_index is not None and gpu_index != record.gpu_index:
                live.writer.place(report.trial_id, gpu_index, share)
            new = live.records.add(report.trial_id, report.epochs, gpu_index, report.best)
            if new:
                live.writer.epochs(report.trial_id, new)
            if report.status is not None:
                reason = report.reason and f"{report.reason} at epoch {record.epochs}"
                live.writer.end(live.records.end(report.trial_id, report.status, reason=reason))
        if result["not_as_alone"] is not None:
            self._train_alone(trial, result["not_as_alone"])
        if result["out_of_memory"] and not trial.config["fused"]:
            name = trial.config["trial_ids"][0]
            live.enlarge(live.trials[name], device_of(trial.config), share_of(trial.config), live.arrays.get(name))
        result["members"], result["lines"] = [], []  # told and kept: Tune need not carry them in its snapshots

    def _train_alone(self, trial: Any, reason: str) -> None:
        """Restart all members of an array, ended ones too, because they differ from the same trials trained alone."""
        live, names = self.live, trial.config["trial_ids"]
        live.say(f"{trial.config['array_id']}: {reason}; its {len(names)} trials are trained alone, from the beginning")
        live.fuser.refuse(live.trials[names[0]], reason)
        for name in names:
            if name in live.records.by_id:
                live.records.end(name, "failed", error=reason)
            live.checkpoints.pop(name, None)
            live.arrays.pop(name, None)
        if live.rule is not None:
            ray.get(live.rule.forget.remote(list(names)))

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Handle a failed array or trial; members that ended regularly are recorded by `on_trial_result`."""
        result = trial.last_result or {}
        failure = result.get("failure") or result.get("unknown_metric")
        if self.live.enlarged.pop(trial.config["trial_ids"][0], None) is not None:
            return  # the searcher gives it again
        if failure is not None and self.live.unknown_metric is None and result.get("not_as_alone") is None:
            self._failed(trial, failure)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Handle an array or trial whose worker was lost more often than `cluster.max_failures` allows."""
        self._failed(trial, str(trial.get_error() or "the worker was lost"))

    def _failed(self, trial: Any, error: str) -> None:
        left = [name for name in trial.config["trial_ids"] if not self._has_ended(name)]
        if trial.config["fused"]:
            last_line = error.strip().splitlines()[-1]
            self.live.say(
                f"{trial.config['array_id']} failed ({last_line}); its {len(left)} trials go on in smaller parts"
            )
            return
        for name in left:
            if name not in self.live.records.by_id:  # lost before it had begun
                self.live.records.start(self.live.trials[name])
                self.live.writer.begin(self.live.trials[name])
            self.live.writer.end(self.live.records.end(name, "failed", error=error))

    def _has_ended(self, name: str) -> bool:
        record = self.live.records.by_id.get(name)
        return record is not None and record.status in ("finished", "stopped")

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Count the retry after a lost worker, and charge the members for their time."""
        self.live.records.retries += 1
        self._charge(trial)

    def _charge(self, trial: Any) -> None:
        """Charge the members of an array that begins again for the GPU time since the last charge."""
        records = self.live.records
        names = [name for name in trial.config["trial_ids"] if name in records.by_id]
        gpu_index = next((records.by_id[name].gpu_index for name in names), None)
        records.charge(trial.trial_id, names, gpu_index, share_of(trial.config).fraction)

    def on_checkpoint(self, iteration: int, trials: list[Any], trial: Any, checkpoint: Any, **info: Any) -> None:
        """Note the URIs of the kept members' checkpoints, and of the array's for the members under way."""
        folder = self.live.scratch.beside(checkpoint.path)
        members = folder / MEMBERS
        try:
            self.live.checkpoints.update({name: (members / name).uri for name in members.folders()})
            self.live.arrays.update(dict.fromkeys(under_way(folder), folder.uri))
        except (OSError, StorageError):  # Tune has it all the same, and the next one is read again
            logger.exception("the checkpoint of array %s", trial.config["array_id"])

    def get_state(self) -> dict[str, Any]:
        """Return the records, the checkpoints and the stopping rule for a resumed sweep."""
        return {
            "records": self.live.records.state(),
            "checkpoints": self.live.checkpoints,
            "arrays": self.live.arrays,
            "rule": None if self.live.rule is None else ray.get(self.live.rule.state.remote()),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the saved state; called by a resumed sweep before any trial starts."""
        self.live.records.restore(state["records"])
        self.live.checkpoints, self.live.arrays = state["checkpoints"], state["arrays"]
        if self.live.rule is not None and state["rule"] is not None:
            ray.get(self.live.rule.restore.remote(state["rule"]))
