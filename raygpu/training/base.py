"""Interface of every kind of training to the engines: an epoch at a time, saved and loaded as a folder."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from raygpu.errors import one_line
from raygpu.search.trials import EpochResult

if TYPE_CHECKING:
    import numpy as np

    from raygpu.config.sections import Precision
    from raygpu.experiment import Experiment
    from raygpu.records.training_progress import Progress
    from raygpu.search.trials import Trial
    from raygpu.training.hyperparameters import OptimizerSettings


ARRAY_CHECKPOINT = "array.pt"
"""File name of the checkpoint of an array of torch models."""


LOSS = "loss"
"""Name of the loss among the metrics."""
LARGE = 100_000_000
"""Number of parameters above which a first step on the CPU would take too long."""


class NotAsAlone(RuntimeError):
    """A member of an array does not train as the same trial does alone; the message names the evidence."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a training that do not come from its hyper-parameters."""

    epochs: int | None
    """Number of epochs; None lets a function or script end by itself."""
    threads: int
    """CPU threads that the training may keep busy."""
    precision: Precision
    folder: Path
    """Existing folder of this trial alone, for a script's output and scratch files."""
    keeps_files: bool = True
    """Whether the files that a script writes stay in `folder`; those of a measurement do not."""
    folds: int | None = None
    """Number of folds of the cross-validation, which a function or script is told; None without one."""
    changing: tuple[str, ...] = ()
    """Hyper-parameters whose values may change while an array trains, in a population."""

    @property
    def scales_loss(self) -> bool:
        """Whether the precision needs loss scaling."""
        return self.precision == "fp16"


@dataclass(frozen=True, slots=True)
class Exported:
    """A trained model that needs none of the experiment's code, with its outputs for a few samples."""

    model: Any
    """Ready to predict, on the CPU."""
    outputs: np.ndarray
    program: Path | None
    """The exported program's path; None for a torch model with a single input, which MLflow exports itself."""


def thread_environment(threads: int, *, yielding: bool = False) -> dict[str, str]:
    """Return environment variables for a process that shares its machine: bounded CPU threads, GPU memory on demand.

    TensorFlow and JAX would otherwise take the whole GPU from their neighbours. yielding: threads that wait for each
    other give up the processor meanwhile. That costs a fifth of the speed on an idle machine; but if they spin while
    another process keeps one core busy, the thread that they wait for gets no core, and all are several times slower.
    """
    thread_counts = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    shared = {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    if yielding:
        shared["OMP_WAIT_POLICY"] = "passive"
    return thread_counts | {name: os.environ.get(name, value) for name, value in shared.items()}


class Training(Protocol):
    """Interface of a training: one trial, an epoch at a time."""

    epoch: int
    """Last epoch that has ended, or that was loaded; 0 at the beginning."""
    notes: Sequence[str] = ()
    """Lines for the user on a training that went on from a checkpoint, and on its evaluations."""

    def run_epoch(self) -> EpochResult | None:
        """Train and evaluate one epoch, or wait for the next report; return None once the training has ended."""

    def has_saved(self, epoch: int) -> bool:
        """Return whether `save` writes this epoch, the last one that has ended: a function's or a script's own
        checkpoint may be older."""
        return True

    def save(self, folder: Path) -> None:
        """Write everything needed to go on after the last epoch that has ended."""

    def load(self, folder: Path) -> None:
        """Go on from a folder that `save` wrote. Called before the first `run_epoch`."""

    def close(self) -> None:
        """End early if need be, and free memory, threads and processes. Called once, in any case."""


class ProductionTraining(Protocol):
    """Interface of one process' part of a production training."""

    notes: list[str]
    """Lines for a person on differences from a training on one device."""

    @property
    def epoch(self) -> int:
        """Last epoch that has ended, or that was loaded; 0 at the beginning."""

    def advance(self) -> Progress | None:
        """Train until there is progress to report; return None once the training has ended."""

    def begin_save(self, folder: Path) -> Callable[[], None]:
        """Return the function that writes everything needed to go on from this moment; all ranks call it.

        Another thread may call the function while the training goes on. Rank 0's writes; `folder` need not exist on
        the others.
        """

    def load(self, folder: Path) -> None:
        """Go on from a folder that was saved. Called before the first `advance`."""

    def load_parameters(self, folder: Path) -> None:
        """Begin with a trial's parameters: a warm start."""

    def close(self) -> None:
        """End early if need be, and free memory. Called once, in any case."""


class ModelArray(Protocol):
    """Interface of an array: trials that train side by side, an epoch of all at a time; or a trial alone."""

    @property
    def trials(self) -> Sequence[Trial]:
        """Trials under way: those that were not dropped."""

    @property
    def epoch(self) -> int:
        """Last epoch that has ended, or that was loaded."""

    def run_epoch(self) -> Mapping[str, EpochResult] | None:
        """Train and evaluate the next epoch; return results by trial id, None once the training has ended."""

    def drop(self, trial_ids: Collection[str]) -> None:
        """Take trials out that will not go on."""

    def has_saved(self, epoch: int) -> bool:
        """Return whether `save_member` would write the parameters of this epoch, the last one that has ended."""

    def save_member(self, trial_id: str, folder: Path) -> None:
        """Write the checkpoint that the trial alone would have written."""

    def save(self, folder: Path) -> None:
        """Write everything needed to go on with all trials under way."""

    def load(self, folder: Path) -> None:
        """Go on from a folder that `save` wrote."""

    def close(self) -> None:
        """Free memory, threads and processes. Called once, in any case."""


class ChangingArray(ModelArray, Protocol):
    """Interface of an array whose members belong to a population: they take over parameters, and change values."""

    def adopt(self, trial_id: str, settings: OptimizerSettings) -> None:
        """Go on with other numbers of the optimizer for a member."""

    def copy_members(self, donors: Mapping[str, str]) -> None:
        """Copy parameters, buffers and optimizer state to members from others of this array, by trial ids."""

    def load_member(self, trial_id: str, folder: Path) -> None:
        """Copy parameters, buffers and optimizer state to a member from a checkpoint of this epoch."""


def build_model(experiment: Experiment, hp: Mapping[str, Any]) -> Any:
    """Return the result of `model(hp)`. Raises RuntimeError if it exits, which would end a command without a word."""
    try:
        return experiment.model(hp)
    except SystemExit as error:
        raise RuntimeError(f"model(hp) exits, by {one_line(error)}") from error


def scores(loss: Any, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results of an experiment's `loss` and `metrics` by name. Raises TypeError for metrics that are no
    numbers by name, ValueError for a metric that has the name of the loss."""
    if not isinstance(metrics, Mapping):
        raise TypeError(f"metrics() returned {type(metrics).__name__}; a dict is wanted, as {{'accuracy': 0.9}}")
    for name, value in metrics.items():
        if value is None or isinstance(value, str | bytes | Mapping | list | tuple):
            raise TypeError(f"metrics() returned {value!r} as {name!r}; a number is wanted")
    if LOSS in metrics:
        raise ValueError(f"metrics() returned {LOSS!r}, the name of what loss() returns: give the metric another name")
    return {LOSS: loss, **metrics}


def first_result(training: Any, num_parameters: int) -> EpochResult:
    """Train and evaluate one epoch of a torch or Keras training; a model of more than LARGE parameters is evaluated
    alone."""
    if num_parameters <= LARGE:
        result: EpochResult = training.run_epoch()
        return result
    metrics = {f"validation/{name}": value for name, value in training.evaluate().items()}
    return EpochResult(1, {"train/loss": math.nan, **metrics})
