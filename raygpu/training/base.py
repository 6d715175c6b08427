"""Interface of every kind of training to the engines: an epoch at a time, saved and loaded as a folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

    from raygpu.config.sections import Precision
    from raygpu.search.trials import EpochResult


ARRAY_CHECKPOINT = "array.pt"
"""File name of the checkpoint of an array of torch models."""


class NotAsAlone(RuntimeError):
    """A member of an array does not train as the same trial does alone; the message says what shows it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings that a training takes from its surroundings."""

    epochs: int | None
    """The last epoch; None lets a function or script end by itself."""
    threads: int
    """CPU threads that the training may keep busy."""
    precision: Precision
    folder: Path
    """Exists and is this trial's own: a script's output and scratch files go here."""


@dataclass(frozen=True, slots=True)
class Exported:
    """A trained model without the code that made it, and what it makes of a few samples."""

    model: Any
    """Ready to predict, on the CPU."""
    outputs: np.ndarray
    program: Path | None
    """The exported program's path; None for a torch model with a single input, which MLflow exports itself."""


def surroundings(threads: int, *, yielding: bool = False) -> dict[str, str]:
    """The environment of a process that shares its machine: CPU threads bounded, GPU memory taken as it is needed.

    TensorFlow and JAX would otherwise take the whole GPU from their neighbours. yielding: threads that wait for each
    other leave the processor meanwhile. That takes a fifth of the speed on an idle machine; but where they spin, and
    another process keeps one core busy, the one that they wait for gets no core, and all are several times slower.
    """
    own = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    shared = {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    if yielding:
        shared["OMP_WAIT_POLICY"] = "passive"
    return own | {name: os.environ.get(name, value) for name, value in shared.items()}


class Training(Protocol):
    """One training under way."""

    epoch: int
    """The last epoch yielded, or gone on from; 0 at the beginning."""

    def run_epoch(self) -> EpochResult | None:
        """Train and evaluate one epoch, or wait for the next report; None when the training has ended."""

    def save(self, folder: Path) -> None:
        """Write all that is needed to go on after the last epoch yielded."""

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote. Called before the first `run_epoch`."""

    def close(self) -> None:
        """End early if need be, and free memory, threads and processes. Called once, always."""
