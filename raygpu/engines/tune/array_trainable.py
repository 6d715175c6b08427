"""Tune trainable of fused mode: it trains an array of trials, or one trial alone that cannot be fused.

As in process mode, an error of the experiment is a result and no exception, so that Tune's own `max_failures` counts
lost workers alone.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import ray
from ray import tune
from ray.tune.result import DONE, SHOULD_CHECKPOINT

from raygpu.devices.exhaustion import is_out_of_memory
from raygpu.engines.tune.array_checkpoint import MEMBERS, PROGRESS
from raygpu.engines.tune.array_results import KeptMembers
from raygpu.engines.tune.memory_limit import Cap
from raygpu.engines.tune.trial_trainable import (
    REPORT_S,
    Shared,
    breaks_device,
    device_of,
    mps_environment,
    share_of,
    trial_of,
)
from raygpu.errors import UnknownMetric
from raygpu.experiment import Experiment, Splits
from raygpu.planning.gpu_shares import Plan
from raygpu.search.trials import EpochResult, Status, Trial
from raygpu.storage import Storage, StorageError
from raygpu.training.base import NotAsAlone, Settings, surroundings
from raygpu.training.start import start

MARGIN = 0.9
"""Share of a split GPU's memory for arrays; the rest is for CUDA contexts and other processes."""


@dataclass(frozen=True, slots=True)
class ArrayShared:
    """Settings that all arrays of a sweep have in common, sent through Ray's object store."""

    shared: Shared
    """Settings of the sweep; its plan is for trials that are trained alone."""
    arrays: Plan
    """Plan for arrays."""
    width: int | None
    """Number of members that step as one program, or of logical devices in split mode; None to measure it."""
    host_memory_gib: Mapping[str, float]
    """Host memory for an array that trains on a CPU, by device type."""
    mean_epochs: float
    """Mean number of epochs of a trial, early stops included."""
    keep_all: bool
    trials: Mapping[str, Trial]
    """All trials of the sweep, by id, if they were known at its start; else empty."""
    rule: Any
    """Ray actor with the stopping rule; None for no rule."""
    reason: str
    """Reason recorded for a member that the rule stops."""


@dataclass(slots=True)
class MemberReport:
    """New epochs and the end of one member, as part of an array's result."""

    trial_id: str
    epochs: list[EpochResult] = field(default_factory=list)
    status: Status | None = None
    """Final status; None while the member is under way."""
    reason: str | None = None
    best: tuple[float, int] | None = None
    """Best score of the member and its epoch; None if the last epoch counts."""


class ArrayTrainable(tune.Trainable):
    """Tune trainable of one array at a time; each `step` trains whole epochs of all its members."""

    def setup(self, config: dict[str, Any], common: ArrayShared | None = None, splits: Splits | None = None) -> None:
        """Set the worker's environment, load the experiment, and take the first array."""
        assert common is not None
        assert splits is not None
        self.common = common
        self.shared = common.shared
        self.splits = splits
        # Members' results come by the hundred: the driver writes them to MLflow on the same cores meanwhile.
        variables = surroundings(self._threads(config), yielding=True)
        os.environ.update(variables | ({} if config["fused"] else mps_environment(self.shared, config)))
        os.chdir(self.shared.source.folder)
        self.experiment = cast(Experiment, self.shared.source.resolve())
        self.cap = Cap(self.shared.source.kind, self.shared.memory_gib[self._device(config)])
        self.array: Any = None
        self._device_is_broken = False
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Close the last array and take the next one, so that Tune reuses this worker."""
        self._device_is_broken = self._device_is_broken or breaks_device(self._failure)
        self._close()
        self._begin(new_config)
        return True

    def _begin(self, config: Mapping[str, Any]) -> None:
        carried = {trial.trial_id: trial for trial in map(trial_of, config["trials"])}
        self.fused: bool = config["fused"]
        self.threads = self._threads(config)
        self.device = self._device(config)
        self.trials = [carried.get(name) or self.common.trials[name] for name in config["trial_ids"]]
        names = [trial.trial_id for trial in self.trials]
        self.kept = KeptMembers(self.shared.scoring, names, keep_all=self.common.keep_all)
        self.ended: set[str] = set()
        self.share = share_of(config)
        self._checkpoint: str | None = config["checkpoint"]
        """Checkpoint to go on from after the trial ran out of memory in a smaller share; None for none."""
        self.width = self.common.width
        self._narrowed: list[Trial] = []
        """Members of an array that ran out of memory, until it goes on at half its width."""
        self._last = self.kept.folder.with_name(f"{self.kept.folder.name}-last")
        """Copy of the array's last checkpoint, from which it goes on if it runs out of memory."""
        self._failure: str | None = None
        self._not_as_alone: str | None = None
        """Reason why the array's members differ from the same trials trained alone; None if they do not."""
        self._out_of_memory = False
        self._lines: list[str] = []
        self._seconds: dict[str, float] = {}
        self.waiting: list[Trial] = []
        """Members that do not fit in memory beside the others, to be trained after them."""
        self._saved_at = time.monotonic()

    @property
    def _steps_as_one(self) -> bool:
        """Return whether the array is one program, a `TorchArray`."""
        return self.fused and self.shared.source.kind == "torch"

    def _threads(self, config: Mapping[str, Any]) -> int:
        device = self._device(config)
        if config["fused"]:
            return self.common.arrays.on(device).threads_per_trial
        return self.shared.plan.on(device).resized(share_of(config)).threads_per_trial

    def _gpu_gib(self) -> float | None:
        """Return the GPU memory in GiB that a split array may take; None on a simulated GPU."""
        part = self.common.arrays.on(self.device)
        return part.device_gib and MARGIN * part.device_gib * part.share.fraction

    def _device(self, config: Mapping[str, Any]) -> str:
        return self.common.arrays.on(device_of(config)).device

    def step(self) -> dict[str, Any]:
        """Train for at least a second or to the end of all members; return every epoch since the last result.

        Raises RuntimeError if an earlier array lost this worker's CUDA context.
        """
        if self._device_is_broken:
            raise RuntimeError("this worker's CUDA context was lost by an earlier array")
        reports: dict[str, MemberReport] = {}
        unknown_metric: str | None = None
        started = time.monotonic()
        try:
            while self._failure is None and (array := self._array()).trials:
                began = time.monotonic()
                results = array.run_epoch()
                assert results is not None, "members that have trained every epoch are dropped"
                train_s = next(iter(results.values())).train_s or 0.0
                self._spend(train=train_s, evaluation=time.monotonic() - began - train_s)
                self._take(results, reports)
                if time.monotonic() - started >= REPORT_S:
                    break
        except UnknownMetric as fault:
            unknown_metric = str(fault)
        except StorageError:
            raise  # no fault of the members': they are tried again, as after a lost worker
        except BaseException as error:  # noqa: BLE001 - the user's code: its traceback is the result, SystemExit included
            self._fail(error)
        left = self._narrowed or self.waiting or (self.array is not None and self.array.trials)
        done = unknown_metric is not None or self._failure is not None or not left
        lines, self._lines = self._lines, []
        seconds, self._seconds = self._seconds, {}
        return {
            "score": self.kept.tune_score(),
            "members": list(reports.values()),
            "failure": self._failure,
            "not_as_alone": self._not_as_alone,
            "out_of_memory": self._out_of_memory,
            "unknown_metric": unknown_metric,
            "lines": lines,
            "seconds": seconds,
            "node_id": ray.get_runtime_context().get_node_id(),
            "gpu_ids": [str(gpu_id) for gpu_id in ray.get_gpu_ids()],
            DONE: done,
            SHOULD_CHECKPOINT: not done and self._checkpoint_due(),
        }

    def _array(self) -> Any:
        """Return the array under way; make the first one, or the next one of the members that wait for memory."""
        if self.array is None:
            self.cap.set(self.share)
            checkpoint, self._checkpoint = self._checkpoint, None
            if checkpoint is not None:
                with Storage(checkpoint).fetched() as folder:
                    self.load_checkpoint(str(folder))
            elif self._narrowed:
                self.array = self._narrower()
            else:
                self.array = self._fused(self.trials) if self.fused else self._alone(self.trials[0])
        elif not self.array.trials and self.waiting:
            self.array.close()
            shutil.rmtree(self._last, ignore_errors=True)
            self.array = self._fused(self.waiting)
        return self.array

    def _fused(self, trials: list[Trial], checkpoint: Path | None = None) -> Any:
        if self.shared.source.kind == "keras":
            return self._split(trials, checkpoint)
        began = time.monotonic()
        from raygpu.training.fused.model_array import TorchArray
        from raygpu.training.fused.width import capacity, settle

        imported = time.monotonic()
        common = self.common
        fraction, host_gib = common.arrays.on(self.device).share.fraction, common.host_memory_gib[self.device]
        limit, count = capacity(self.experiment, trials[0], fraction, host_gib)
        now, self.waiting = trials[:count], trials[count:]
        if self.waiting:
            self._lines.append(f"{len(now)} of {len(trials)} trials fit in memory at once; the others follow")
        array = TorchArray(self.experiment, self.splits, now, self._settings(), width=self.width)
        if checkpoint is not None:
            array.load(checkpoint)
        made = time.monotonic()
        self._lines += settle(array, limit, common.mean_epochs)
        self._spend(imports=imported - began, members=made - imported, probe=time.monotonic() - made)
        return array

    def _split(self, trials: list[Trial], checkpoint: Path | None) -> Any:
        from raygpu.training.keras.split import KerasSplit

        assert self.width is not None
        array = KerasSplit(self.experiment, self.splits, trials, self._settings(), self.width, self._gpu_gib())
        if checkpoint is not None:
            array.load(checkpoint)
        return array

    def _fail(self, error: BaseException) -> None:
        """End the Tune trial by the experiment's error; after an out-of-memory, go on at half the array's width."""
        if isinstance(error, NotAsAlone):
            self._failure, self._not_as_alone = traceback.format_exc(), str(error)
            return
        out_of_memory = is_out_of_memory(error)
        width = 1
        if self._steps_as_one and self.array is not None:
            width = max((tile.width for tile in self.array.tiles), default=1)
        if not out_of_memory or width < 2:
            self._failure, self._out_of_memory = traceback.format_exc(), out_of_memory
            return
        self.width, self._narrowed = width // 2, self.array.trials
        self._close_array()
        where = "its last checkpoint" if self._last.exists() else "the beginning"
        self._lines.append(f"out of memory at width {width}; goes on at {self.width} from {where}")

    def _narrower(self) -> Any:
        """Return the array that ran out of memory, made anew at half its width."""
        members, self._narrowed, later = self._narrowed, [], self.waiting
        array = self._fused(members, self._last if self._last.exists() else None)
        self.waiting += later
        return array

    def _spend(self, **seconds: float) -> None:
        for what, more in seconds.items():
            self._seconds[what] = self._seconds.get(what, 0.0) + more

    def _alone(self, trial: Trial) -> Any:
        from raygpu.training.array_of_one import ArrayOfOne

        solo = start(self.shared.source, self.experiment, self.splits, trial, self._settings())
        return ArrayOfOne(solo, trial)

    def _settings(self) -> Settings:
        shared = self.shared
        return Settings(shared.epochs, self.threads, shared.precision, Path(tempfile.gettempdir()))

    def _take(self, results: Mapping[str, EpochResult], reports: dict[str, MemberReport]) -> None:
        """Score an epoch of all members, decide who goes on, and drop the others."""
        epoch = next(iter(results.values())).epoch
        ending: dict[str, tuple[Status, str | None]] = {}
        for name, result in results.items():
            reports.setdefault(name, MemberReport(name)).epochs.append(result)
            self.kept.take(name, result, self.array.save_member)
            reports[name].best = self.kept.best_of(name)
            if self.shared.scoring.diverged(result.metrics) or epoch == self.shared.epochs:
                ending[name] = ("finished", None)
        if epoch == self.shared.epochs and self._steps_as_one and ending:
            self.array.audit(min(ending, key=self.kept.rank))
        for name in self._stopped(epoch, [name for name in results if name not in ending]):
            ending[name] = ("stopped", self.common.reason)
        for name, (status, reason) in ending.items():
            reports[name].status, reports[name].reason = status, reason
            self.kept.end(name, self.array.save_member)
        if ending:
            self.array.drop(ending.keys())
            self.ended |= ending.keys()
            if self._steps_as_one:
                from raygpu.training.fused.width import resettle

                self._lines += resettle(self.array)

    def _stopped(self, epoch: int, names: Sequence[str]) -> frozenset[str]:
        decisions = self.shared.decision_epochs
        if self.common.rule is None or not names or (decisions is not None and epoch not in decisions):
            return frozenset()
        return frozenset(
            ray.get(self.common.rule.decide.remote(epoch, [(name, self.kept.last(name)) for name in names]))
        )

    def _checkpoint_due(self) -> bool:
        if time.monotonic() - self._saved_at < self.shared.checkpoint_s:
            return False
        self._saved_at = time.monotonic()
        return True

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Save the array, the kept parameters of its members, and the members' progress."""
        folder = Path(checkpoint_dir)
        shutil.copytree(self.kept.folder, folder / MEMBERS)
        under_way = [] if self.array is None or self._failure is not None else self.array.trials
        if under_way:
            self.array.save(folder)
            if self.fused:
                shutil.copytree(folder, self._last, dirs_exist_ok=True)
        progress = {
            **self.kept.state(),
            "ended": sorted(self.ended),
            "under_way": [trial.trial_id for trial in under_way],
        }
        (folder / PROGRESS).write_text(json.dumps(progress))

    def load_checkpoint(self, checkpoint_dir: str | None) -> None:
        """Go on with a lost or interrupted array from its checkpoint."""
        if checkpoint_dir is None:
            return
        self.cap.set(self.share)
        folder = Path(checkpoint_dir)
        progress = json.loads((folder / PROGRESS).read_text())
        self.ended = set(progress["ended"])
        self.kept.restore(progress, folder / MEMBERS)
        self.trials = [trial for trial in self.trials if trial.trial_id not in self.ended]
        saved = [trial for trial in self.trials if trial.trial_id in progress["under_way"]]
        if saved:
            later = [trial for trial in self.trials if trial.trial_id not in progress["under_way"]]
            try:
                if self.fused:
                    self.array = self._fused(saved, folder)
                else:
                    self.array = self._alone(saved[0])
                    self.array.load(folder)
            except BaseException as error:  # noqa: BLE001 - as in `step`
                self._fail(error)
            self.waiting += later

    def cleanup(self) -> None:
        """Close the array, free its memory, and delete its local files."""
        self._close()

    def _close(self) -> None:
        self.kept.close()
        shutil.rmtree(self._last, ignore_errors=True)
        self._close_array()

    def _close_array(self) -> None:
        array, self.array = self.array, None
        if array is not None:
            array.close()
        self.cap.lift()
