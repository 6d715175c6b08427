"""Tune trainable of process mode: it trains one trial after another in a worker that is reused.

An error of a trial is a result and no exception: the result carries the traceback, and the worker lives on. So Tune's
own `max_failures` counts lost workers alone, and only those are tried again.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.result import DONE, SHOULD_CHECKPOINT

from raygpu.config.sections import Precision
from raygpu.config.source import Source
from raygpu.devices.exhaustion import is_out_of_memory
from raygpu.devices.mps import Access
from raygpu.engines.tune.memory_limit import Cap
from raygpu.errors import RaygpuError, UnknownMetric
from raygpu.experiment import Splits
from raygpu.planning.gpu_shares import Plan, Share
from raygpu.records.run_directory import BEST_EPOCH, SCORE
from raygpu.search.trials import EpochResult, Scoring, Standing, Trial
from raygpu.storage import Storage, StorageError
from raygpu.training.base import Settings, Training, surroundings
from raygpu.training.start import start

logger = logging.getLogger(__name__)
PROGRESS = "progress.json"
"""File of a checkpoint with the trial's scores so far."""
FAILED = "failed"
"""Empty file, the only one in the checkpoint of a trial that failed."""
# Tune hears of a trial about this often, or at once where a scheduler wants to decide; every epoch is in the result.
REPORT_S = 1.0
# Schedulers take percentiles of scores: the worst one is finite, so that a percentile stays a number.
WORST = 1e300


@dataclass(frozen=True, slots=True)
class Shared:
    """Settings that all trials of a sweep have in common, sent through Ray's object store."""

    source: Source
    scoring: Scoring
    epochs: int | None
    decision_epochs: frozenset[int] | None
    """Epochs at which the stopping rule decides; None for every epoch."""
    plan: Plan
    """Plan for trials that are trained alone."""
    precision: Precision
    trials: Storage
    """Storage for the trials' own files, with a folder for each trial."""
    checkpoint_s: float
    memory_gib: Mapping[str, float | None]
    """Memory of a whole device in GiB, by device type; each trial is limited to its share. None for no limit."""
    mps: Mapping[str, Access]
    """MPS daemons by the GPU's UUID; empty where trials take turns on their GPU."""


def tune_config(trial: Trial) -> dict[str, Any]:
    """Return a trial as a Tune config."""
    return {"trial_id": trial.trial_id, "seed": trial.seed, "hyperparameters": dict(trial.hyperparameters)}


def with_share(config: dict[str, Any], device: str, share: Share, checkpoint: str | None = None) -> dict[str, Any]:
    """Return the config with device type, GPU share and checkpoint added."""
    return config | {
        "device": device,
        "trials_per_gpu": share.trials_per_gpu,
        "gpus_per_trial": share.gpus_per_trial,
        "checkpoint": checkpoint,
    }


def share_of(config: Mapping[str, Any]) -> Share:
    """Return the share that `with_share` added to a config."""
    return Share(config["trials_per_gpu"], config["gpus_per_trial"])


def device_of(config: Mapping[str, Any]) -> str:
    """Return the device type that `with_share` added to a config; all trials of a worker have the same type."""
    return str(config["device"])


def trial_of(config: Mapping[str, Any]) -> Trial:
    """Return the trial of a config that `tune_config` made."""
    return Trial(config["trial_id"], config["seed"], config["hyperparameters"])


class TrialTrainable(tune.Trainable):
    """Tune trainable of one trial at a time; each `step` trains until there is a result to report."""

    def setup(self, config: dict[str, Any], shared: Shared | None = None, splits: Splits | None = None) -> None:
        """Set the worker's environment, working directory and memory limit, and take its first trial."""
        assert shared is not None
        self.shared = shared
        self.splits = splits
        part = shared.plan.on(device_of(config))
        self.threads = part.resized(share_of(config)).threads_per_trial
        os.environ.update(surroundings(self.threads) | mps_environment(shared, config))
        os.chdir(shared.source.folder)
        self.cap = Cap(shared.source.kind, shared.memory_gib[part.device])
        self.code: Any = None
        self.training: Training | None = None
        self._copy: Path | None = None
        self._device_is_broken = False
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Close the last trial and take the next one, so that Tune reuses this worker."""
        self._device_is_broken = self._device_is_broken or breaks_device(self.failure)
        self._close()
        self._begin(new_config)
        return True

    def _begin(self, config: Mapping[str, Any]) -> None:
        self.trial = trial_of(config)
        self.share = share_of(config)
        self._checkpoint: str | None = config["checkpoint"]
        self.standing = Standing()
        self._best: Path | None = None
        """Checkpoint of the best epoch so far, if best epochs count; else None."""
        self.epoch = 0
        self.failure: str | None = None
        self.out_of_memory = False
        self._told_epoch = 0
        self._saved_at = time.monotonic()

    def step(self) -> dict[str, Any]:
        """Train until a scheduler's decision, for a second, or to the end; return every epoch since the last result.

        Raises RuntimeError if an earlier trial lost this worker's CUDA context.
        """
        if self._device_is_broken:
            # Nothing runs in a process whose CUDA context is lost. Raised here and not when the worker was handed its
            # trial: Tune starts a running trial again in a fresh worker, and gives up one that never ran.
            raise RuntimeError("this worker's CUDA context was lost by an earlier trial")
        results: list[EpochResult] = []
        ended = False
        unknown_metric: str | None = None
        started = time.monotonic()
        try:
            training = self._training()
            while not ended and not self._due(started):
                result = training.run_epoch()
                if result is None:
                    self._require_a_report()
                    ended = True
                    break
                results.append(result)
                self.epoch = result.epoch
                self._take_score(result)
                ended = self.shared.scoring.diverged(result.metrics) or result.epoch == self.shared.epochs
        except UnknownMetric as fault:
            unknown_metric, ended = str(fault), True
        except StorageError:
            raise  # no fault of the trial's: it is tried again, as after a lost worker
        except BaseException as error:  # noqa: BLE001 - the user's code: its traceback is the trial's result
            self.failure, ended = traceback.format_exc(), True
            self.out_of_memory = is_out_of_memory(error)
            del error  # with its frames it holds what the trial has allocated
            self._close()
        return {
            "score": self._finite(self.standing.last),
            "final_score": self._finite(self.standing.score(self.shared.scoring)),
            "best": self.standing.found if self.shared.scoring.which == "best" else None,
            "epoch": self.epoch,
            "epochs": results,
            "ended": ended,
            "failure": self.failure,
            "out_of_memory": self.out_of_memory,
            "unknown_metric": unknown_metric,
            "node_id": ray.get_runtime_context().get_node_id(),
            "gpu_ids": [str(gpu_id) for gpu_id in ray.get_gpu_ids()],
            DONE: ended,
            SHOULD_CHECKPOINT: not ended and self._checkpoint_due(),
        }

    def _training(self) -> Training:
        if self.training is None:
            shared = self.shared
            if self.code is None and shared.source.kind != "command":
                self.code = shared.source.resolve()
            settings = Settings(shared.epochs, self.threads, shared.precision, self._own_folder())
            self.cap.set(self.share)
            self.training = start(shared.source, self.code, self.splits, self.trial, settings)
            if self._checkpoint is not None:
                with Storage(self._checkpoint).fetched() as checkpoint:
                    self._go_on(str(checkpoint))
        return self.training

    def _own_folder(self) -> Path:
        """Return the folder for the trial's own files; for object storage, a local copy until the trial is closed."""
        kept = self.shared.trials / self.trial.trial_id
        folder = kept.path
        if folder is None:
            folder = self._copy = Path(tempfile.mkdtemp(prefix="raygpu-trial-"))
            if kept.is_dir():
                kept.download(folder)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _deliver(self) -> None:
        """Upload the local copy of the trial's own files to object storage, and delete it."""
        copy, self._copy = self._copy, None
        if copy is None:
            return
        try:
            if any(copy.iterdir()):
                (self.shared.trials / self.trial.trial_id).upload(copy)
        except RaygpuError:
            logger.exception("the output of trial %s", self.trial.trial_id)
        finally:
            shutil.rmtree(copy, ignore_errors=True)

    def _due(self, started: float) -> bool:
        """Return whether the epochs so far have to be reported to Tune now."""
        if self.epoch == self._told_epoch:
            return False
        decisions = self.shared.decision_epochs
        due = decisions is None or self.epoch in decisions or time.monotonic() - started >= REPORT_S
        if due:
            self._told_epoch = self.epoch
        return due

    def _take_score(self, result: EpochResult) -> None:
        """Score an epoch; a report without the metric leaves an existing score as it was."""
        if self.standing.take(self.shared.scoring, result) and self.shared.scoring.which == "best":
            self._keep_best()

    def _keep_best(self) -> None:
        """Save the epoch that has just ended as the best one; for a function or script, only if it saved that epoch."""
        training = self.training
        assert training is not None
        self._drop_best()
        if has_saved(training, self.epoch):
            self._best = Path(tempfile.mkdtemp(prefix="raygpu-best-"))
            training.save(self._best)
            write_score(self._best, self.standing)

    def _drop_best(self) -> None:
        best, self._best = self._best, None
        if best is not None:
            shutil.rmtree(best, ignore_errors=True)

    def _finite(self, score: float | None) -> float:
        """Return a score as a finite number for Tune; the worst one for None."""
        return finite(self.shared.scoring.worst if score is None else score)

    def _require_a_report(self) -> None:
        if not self.epoch:
            raise RuntimeError("it ended without a metric: call raygpu.report(...), or print a line of JSON")

    def _checkpoint_due(self) -> bool:
        if time.monotonic() - self._saved_at < self.shared.checkpoint_s:
            return False
        self._saved_at = time.monotonic()
        return True

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Save the training, its scores and its best epoch; only a marker for a trial that failed."""
        if self.training is None:  # nothing is left of a trial that failed
            Path(checkpoint_dir, FAILED).touch()
        else:
            self.training.save(Path(checkpoint_dir))
            Path(checkpoint_dir, PROGRESS).write_text(json.dumps(asdict(self.standing)))
            if self._best is not None:
                shutil.copytree(self._best, Path(checkpoint_dir, BEST_EPOCH))

    def load_checkpoint(self, checkpoint_dir: str | None) -> None:
        """Go on with a lost or interrupted trial from its checkpoint; no effect for a trial that failed."""
        if checkpoint_dir is None or Path(checkpoint_dir, FAILED).exists():
            return
        self._checkpoint = None  # this one is later
        self._training()
        self._go_on(checkpoint_dir)

    def _go_on(self, checkpoint_dir: str) -> None:
        assert self.training is not None
        self.training.load(Path(checkpoint_dir))
        self.epoch = self._told_epoch = self.training.epoch
        self.standing = Standing(**json.loads(Path(checkpoint_dir, PROGRESS).read_text()))
        self._drop_best()
        if (best := Path(checkpoint_dir, BEST_EPOCH)).is_dir():
            self._best = Path(tempfile.mkdtemp(prefix="raygpu-best-"))
            shutil.copytree(best, self._best, dirs_exist_ok=True)

    def cleanup(self) -> None:
        """Close the training and free its memory."""
        self._close()

    def _close(self) -> None:
        training, self.training = self.training, None
        if training is not None:
            try:
                training.close()
            except Exception:
                # What a broken device raises here must not look like a lost worker: the trial has its own result.
                logger.exception("closing trial %s", self.trial.trial_id)
        self._drop_best()
        self._deliver()
        self.cap.lift()


def mps_environment(shared: Shared, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that make this process a client of its GPU's MPS daemon; empty without a daemon."""
    access = next((shared.mps[gpu_id] for gpu_id in map(str, ray.get_gpu_ids()) if gpu_id in shared.mps), None)
    if access is None:
        return {}
    fraction = share_of(config).fraction
    memory_gib = shared.memory_gib[shared.plan.on(device_of(config)).device]
    return access.environment(fraction, memory_gib and fraction * memory_gib)


def breaks_device(failure: str | None) -> bool:
    """Return whether a trial's traceback shows a lost CUDA context, after which nothing runs in its process."""
    return failure is not None and ("CUDA error" in failure or "AcceleratorError" in failure)


def has_saved(training: Any, epoch: int) -> bool:
    """Return whether a training would save this epoch now: a function's or a script's checkpoint may be older."""
    return bool(getattr(training, "has_saved", lambda epoch: True)(epoch))


def write_score(folder: Path, standing: Standing) -> None:
    """Write the best epoch's number and score into its checkpoint."""
    (folder / SCORE).write_text(json.dumps({"epoch": standing.best_epoch, "score": standing.best}))


def finite(score: float) -> float:
    """Return a score bounded to a finite number, as Tune and a search need it."""
    return max(-WORST, min(WORST, score))
