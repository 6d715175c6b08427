"""Tune trainable of every mode: it trains one array after another in a worker that is reused.

A trial alone is an array of one. An error of the experiment is a result and no exception: the result carries the
traceback, and the worker lives on. So Tune's own `max_failures` counts lost workers alone, and only those are tried
again.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import ray
from ray import tune
from ray.tune.result import DONE, SHOULD_CHECKPOINT

from raygpu.devices import disk
from raygpu.engines.tune.array_checkpoint import GONE, DamagedCheckpoint, reading
from raygpu.engines.tune.array_config import ArrayConfig
from raygpu.engines.tune.array_sequence import ArraySequence
from raygpu.engines.tune.arrays import arrays_of
from raygpu.engines.tune.checkpoint_folders import CheckpointFolders
from raygpu.engines.tune.member_report import Failure, MemberReport
from raygpu.engines.tune.member_results import MemberResults
from raygpu.engines.tune.memory_limit import Cap
from raygpu.engines.tune.population_actor import PopulationLost
from raygpu.engines.tune.rule_actor import RuleLost, stopped_by
from raygpu.engines.tune.shared_settings import SharedSettings
from raygpu.errors import UnknownMetric, one_line
from raygpu.records import activity, scratch
from raygpu.records.run_directory import MEMBERS, PROGRESS
from raygpu.records.scratch import fetched
from raygpu.search.repeats import may_be_stopped
from raygpu.search.trials import EpochResult
from raygpu.storage import Storage, StorageError
from raygpu.training.base import ChangingArray, NotAsAlone, thread_environment
from raygpu.training.folds import Data
from raygpu.training.out_of_memory import is_out_of_memory
from raygpu.training.worker_modes import WorkerModes

logger = logging.getLogger(__name__)
# Tune hears of an array about this often; every epoch is in the result.
REPORT_S = 1.0


class ArrayTrainable(tune.Trainable):
    """Tune trainable of one array at a time; each `step` trains whole epochs of all its members."""

    def setup(self, config: dict[str, Any], shared: SharedSettings | None = None, splits: Data | None = None) -> None:
        """Set the worker's environment, working directory and memory limit, and take its first array."""
        assert shared is not None
        self.shared = shared
        self.splits = splits
        settings = ArrayConfig.of(config)
        part = shared.part(settings)
        # Members' results come by the hundred: the driver writes them to MLflow on the same cores meanwhile.
        variables = thread_environment(part.threads_per_trial, yielding=shared.fused is not None)
        os.environ.update(variables | ({} if settings.fused else shared.mps_environment(settings, ray.get_gpu_ids())))
        os.chdir(shared.source.folder)
        self.cap = Cap(shared.source.kind, shared.memory_gib[part.device])
        self.code: Any = None
        self._modes = WorkerModes()
        self._device_is_broken = False
        self._saving_s = 0.0
        """Seconds in which checkpoints were saved, since the last result; of an earlier array, too."""
        self._take_array(settings)

    def __repr__(self) -> str:
        """Return the first trial or array, for Ray's dashboard, which asks once, when the worker starts."""
        return f"{self.array_config.name} and later"

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Close the last array and take the next one, so that Tune reuses this worker."""
        self._device_is_broken = self._device_is_broken or (self._failure is not None and self._failure.breaks_device)
        self.cleanup()
        self._take_array(ArrayConfig.of(new_config))
        return True

    def _take_array(self, config: ArrayConfig) -> None:
        self.array_config = config
        self.checkpoints = CheckpointFolders(self.shared.trial_files, self._storage)
        self.trials = list(config.trials) or [self.shared.trials[name] for name in config.trial_ids]
        self.arrays: ArraySequence | None = None
        self._failure: Failure | None = None
        self._saved_at = time.monotonic()
        self._start_members()

    def _start_members(self) -> None:
        """Begin without any result of the members."""
        shared, names = self.shared, self.array_config.trial_ids
        may_go_back = shared.source.kind in ("function", "command")
        self.kept = MemberResults(shared.scoring, names, keep_all=shared.keep_all, may_go_back=may_go_back)
        self._has_reported = False

    def step(self) -> dict[str, Any]:
        """Train for at least a second or to the end of all members; return every epoch since the last result.

        Raises RuntimeError if an earlier array lost this worker's CUDA context.
        """
        if self._device_is_broken:
            # Nothing runs in a process whose CUDA context is lost. Raised here and not when the worker was handed its
            # array: Tune starts a running trial again in a fresh worker, and gives up one that never ran.
            raise RuntimeError("this worker's CUDA context was lost by an earlier trial")
        reports: dict[str, MemberReport] = {}
        unknown_metric: str | None = None
        lost_actor: str | None = None
        try:
            if self._failure is None:
                disk.wait(self.checkpoints.disks())
                self.arrays = self.arrays or self._begin()
            if self.arrays is not None and not self._has_reported:
                reports, self._has_reported = self.kept.first_reports(self.arrays.epochs()), True
            if self.arrays is not None and self._failure is None:
                self._train(self.arrays, reports)
        except UnknownMetric as fault:
            unknown_metric = str(fault)
        except (RuleLost, PopulationLost) as fault:
            lost_actor = str(fault)  # no fault of the members': the sweep is paused
        except BaseException as error:
            if isinstance(error, StorageError) or disk.is_full(error, self.checkpoints.disks()):
                raise  # no fault of theirs either: they are tried again, as after a lost worker
            self._fail(error)
        arrays, failure = self.arrays, self._failure
        done = unknown_metric is not None or failure is not None or (arrays is not None and arrays.has_ended)
        result = {
            "score": self.kept.tune_score(),
            "members": list(reports.values()),
            "failure": failure and failure.text,
            "not_as_alone": failure and failure.not_as_alone,
            "out_of_memory": failure is not None and failure.out_of_memory,
            "unknown_metric": unknown_metric,
            "lost_actor": lost_actor,
            "under_way": self._under_way(),
            "kept": self.kept.names(),
            **self._told(),
            "node_id": ray.get_runtime_context().get_node_id(),
            "gpu_ids": [str(gpu_id) for gpu_id in ray.get_gpu_ids()],
            DONE: done,
            SHOULD_CHECKPOINT: not done and bool(arrays and arrays.trials) and self._checkpoint_due(),
        }
        self._note_activity(reports.values(), done=done)
        return result

    def _told(self) -> dict[str, Any]:
        """Return this worker's lines, warnings and seconds by activity since the last result."""
        update = self.arrays.take_told() if self.arrays is not None else {"lines": [], "warnings": [], "seconds": {}}
        if self._saving_s:
            update["seconds"]["checkpoints"], self._saving_s = self._saving_s, 0.0
        return update

    def _note_activity(self, reports: Iterable[MemberReport] = (), *, done: bool = False) -> None:
        """Note for `raygpu gpus` what this worker trains. reports: of the epochs since the last note."""
        if done:
            activity.note(None)
            return
        trials = tuple(self._under_way()) or self.array_config.trial_ids
        activity.note(self.shared.activity(self.array_config, trials, (report.epochs for report in reports)))

    def _train(self, arrays: ArraySequence, reports: dict[str, MemberReport]) -> None:
        """Train until there is a result to report."""
        started = time.monotonic()
        if self.kept.undecided is not None:
            self._end(self._stopped(self.kept.undecided, [trial.trial_id for trial in arrays.trials]), reports)
        while (array := arrays.next_array()) is not None:
            if not self._compared(arrays, reports, started):
                return
            if not arrays.trials:
                continue  # all have diverged, and found nobody to take parameters from
            began = time.monotonic()
            results = array.run_epoch()
            arrays.spend_epoch(results, time.monotonic() - began)
            if results is None:  # a function or script that ended by itself
                self._end_by_itself(array.epoch, reports)
                return
            self._take_results(results, reports)
            if time.monotonic() - started >= REPORT_S:
                return

    def _compared(self, arrays: ArraySequence, reports: dict[str, MemberReport], started: float) -> bool:
        """Compare the members with their population, where that is due; return False while others are waited for.

        A result is reported meanwhile, so that Tune can stop and save the trial.
        """
        evolution, array = arrays.evolution, cast(ChangingArray, arrays.array)
        if evolution is None or not evolution.is_due(array):
            return True
        began, absent = time.monotonic(), [trial.trial_id for trial in arrays.waiting]
        member_changes = evolution.patiently(array, self.kept.reached, absent, until_s=started + REPORT_S)
        arrays.spend(population=time.monotonic() - began)
        if member_changes is None:
            return False
        for name, change in member_changes.changes.items():
            reports.setdefault(name, MemberReport(name)).changes.append(change)
        arrays.warnings += member_changes.lines
        if member_changes.from_others:
            self._saved_at = -math.inf  # a checkpoint is due
        self._end(dict.fromkeys(member_changes.ended), reports)
        return True

    def _begin(self, checkpoint: Path | None = None, *, anew: bool = False) -> ArraySequence:
        """Load the experiment and make the array; go on from the checkpoint, or from the config's.

        anew: from the beginning instead.
        """
        began = time.monotonic()
        if self.code is None and self.shared.source.kind != "command":
            self.code = self.shared.source.resolve()
            self._modes.note()
        self._modes.restore()  # an earlier trial's code may have set others, and gone to another folder
        os.chdir(self.shared.source.folder)
        self.cap.set(self.array_config.share)  # which limit it is depends on what the user's code has imported
        arrays = self.arrays = arrays_of(self.array_config, self.shared, self.splits, self.code, self.trials)
        if checkpoint is not None:
            self._go_on(checkpoint)
        elif self.array_config.checkpoint is not None and not anew:
            try:
                with fetched(Storage(self.array_config.checkpoint)) as folder:
                    self._go_on(folder)
            except DamagedCheckpoint as error:
                self._begin_anew(error)
                return self.arrays
        else:
            arrays.waiting = self.trials
        arrays.spend(setup=max(0.0, time.monotonic() - began - sum(arrays.seconds.values())))
        self._note_activity()
        return arrays

    def _go_on(self, checkpoint: Path) -> None:
        assert self.arrays is not None
        with reading():
            progress = json.loads((checkpoint / PROGRESS).read_text())
            self.kept.restore(progress, checkpoint / MEMBERS)
        rest = [trial for trial in self.trials if trial.trial_id not in self.kept.ended]
        under_way = [trial for trial in rest if trial.trial_id in progress["under_way"]]
        self.arrays.waiting = [trial for trial in rest if trial not in under_way]
        if under_way:
            self.arrays.begin(under_way, checkpoint)

    def _end_by_itself(self, epoch: int, reports: dict[str, MemberReport]) -> None:
        if not epoch:
            raise RuntimeError(
                "it ended without a metric: call raygpu.report(...), return a dict, or print a line of JSON"
            )
        self._end({trial.trial_id: None for trial in self.trials}, reports)

    def _take_results(self, results: Mapping[str, EpochResult], reports: dict[str, MemberReport]) -> None:
        """Score an epoch of all members, decide who goes on, and end the others."""
        shared, arrays = self.shared, self.arrays
        assert arrays is not None
        assert arrays.array is not None
        epoch, evolution = next(iter(results.values())).epoch, arrays.evolution
        ending: dict[str, str | None] = {}
        for name, result in results.items():
            if evolution is not None:
                result = evolution.with_values(name, result)
            report = reports.setdefault(name, MemberReport(name))
            report.epochs.append(result)
            self.kept.take(name, result, arrays.array)
            report.best = self.kept.best_of(name)
            lost = shared.scoring.diverged(result.metrics) and not (evolution is not None and evolution.rescues(epoch))
            if lost or epoch == shared.epochs:
                ending[name] = None
        if epoch == shared.epochs and ending:
            arrays.audit(min(ending, key=self.kept.rank))
        try:
            ending |= self._stopped(epoch, [name for name in results if name not in ending])
        finally:
            self._end(ending, reports)

    def _stopped(self, epoch: int, names: Sequence[str]) -> dict[str, str | None]:
        """Ask the stopping rule, at its epochs, which of these members stop; return the reason of each."""
        rule, decisions = self.shared.rule, self.shared.decision_epochs
        names = [name for name in names if may_be_stopped(name)]
        if rule is None or not names or (decisions is not None and epoch not in decisions):
            return {}
        self.kept.undecided = epoch
        scores = [(name, self.kept.last(name)) for name in names]
        stale = [name for name in names if self.kept.scores[name].last_epoch != epoch]
        stopped = stopped_by(rule, epoch, scores, stale, self.shared.stop_reason)
        self.kept.undecided = None
        return stopped

    def _end(self, ending: Mapping[str, str | None], reports: dict[str, MemberReport]) -> None:
        """End members. ending: the reason why each was stopped, None for one that finished."""
        if not ending:
            return
        assert self.arrays is not None
        assert self.arrays.array is not None
        for name in ending:
            self.kept.end(name, self.arrays.array)
        for name, reason in ending.items():  # only now: what could not be kept has failed
            reports.setdefault(name, MemberReport(name)).end(reason)
        self.kept.ended |= ending
        self.arrays.drop(ending.keys())

    def _fail(self, error: BaseException) -> None:
        """Go on with a narrower array after an out-of-memory; else end this one, and free its memory."""
        failure = Failure.of(error)
        if failure.out_of_memory and self.arrays is not None and self.arrays.narrow(self.kept.ended):
            self.kept.set_back(self.arrays.last_checkpoint)
            self._has_reported = False
            return
        self._failure = failure
        self.kept.drop(
            name for name in self.array_config.trial_ids if name not in self.kept.ended or failure.not_as_alone
        )
        self._close_array()

    def _checkpoint_due(self) -> bool:
        if time.monotonic() - self._saved_at < self.shared.checkpoint_s:
            return False
        self._saved_at = time.monotonic()
        return True

    def save(self, checkpoint_dir: str | None = None) -> Any:
        """Save a checkpoint as Tune asks for it, once the disks have space for it."""
        began = time.monotonic()
        disk.wait(self.checkpoints.disks())
        folder = checkpoint_dir or tempfile.mkdtemp(prefix="checkpoint-", dir=scratch.home())
        try:
            return self.checkpoints.save(partial(super().save, folder))
        finally:
            self._saving_s += time.monotonic() - began
            if checkpoint_dir is None:
                shutil.rmtree(folder, ignore_errors=True)

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Save the array, the kept parameters of its members, and the members' progress.

        May be called again with the folder of a call that failed.
        """
        folder = Path(checkpoint_dir)
        under_way = self._under_way()
        if self._failure is not None or (self.arrays is not None and self.arrays.has_ended):
            if self.kept.folder.is_dir():
                shutil.move(self.kept.folder, folder / MEMBERS)  # nothing is trained after this one
        else:
            shutil.copytree(self.kept.folder, folder / MEMBERS, dirs_exist_ok=True)
        (folder / PROGRESS).write_text(json.dumps({**self.kept.state(), "under_way": under_way}))
        if self.arrays is not None and under_way:
            self.arrays.save(folder)

    def _under_way(self) -> list[str]:
        """Return the ids of the trials that would go on from a checkpoint of now."""
        if self.arrays is None or self._failure is not None:
            return []
        return [trial.trial_id for trial in self.arrays.going_on]

    def restore(self, checkpoint_path: Any) -> None:
        """Go on from a checkpoint as Tune asks for it; begin anew, with a warning, where it is gone or damaged."""
        self.checkpoints.restores(checkpoint_path.checkpoint)
        try:
            super().restore(checkpoint_path)
        except Exception as error:
            if not (isinstance(error, DamagedCheckpoint) or str(error).startswith(GONE)):
                raise  # a file system or a device may be at fault: it is tried again, as after a lost worker
            self._begin_anew(error)

    def _begin_anew(self, error: Exception) -> None:
        """Begin at the members' beginning, because their checkpoint is gone or damaged."""
        logger.warning("the checkpoint of %s", self.array_config.name, exc_info=error)
        self.cleanup()
        self._start_members()
        why = one_line(error.__cause__ or error)
        self._begin(anew=True).warnings.append(f"begins anew: its checkpoint cannot be read ({why})")

    def load_checkpoint(self, checkpoint_dir: str | None) -> None:
        """Go on with a lost or interrupted array from its checkpoint."""
        if checkpoint_dir is None:
            return
        try:
            self._begin(Path(checkpoint_dir))
        except Exception as error:
            if not (is_out_of_memory(error) or isinstance(error, NotAsAlone)):
                raise  # to `restore`
            self._fail(error)

    def cleanup(self) -> None:
        """Close the array, free its memory, and delete its local files."""
        self._close_array()
        self.kept.close()

    def _close_array(self) -> None:
        try:
            if self.arrays is not None:
                self.arrays.end()
        except Exception:
            # What a broken device raises here must not look like a lost worker: the members have their own results.
            logger.exception("closing %s", self.array_config.name)
        self.cap.lift()
