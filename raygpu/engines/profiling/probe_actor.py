"""Actor of a probe: makes, times and ends trainings of one way of sharing on one device."""

from __future__ import annotations

import os
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from raygpu.config.sections import Precision, Way
from raygpu.config.source import Source
from raygpu.experiment import Splits
from raygpu.search.trials import Trial
from raygpu.training import memory_usage
from raygpu.training.base import Settings
from raygpu.training.out_of_memory import is_out_of_memory
from raygpu.training.timing import TrainingBenchmark, WorkWindow

EPOCHS = 1000
"""Number of epochs asked for, more than a probe trains: a function does not end during a measurement."""


@dataclass(frozen=True, slots=True)
class Made:
    """Report of a process whose trainings have taken their first steps; both times in seconds."""

    step_s: float
    evaluation_s: float | None


@dataclass(frozen=True, slots=True)
class Taken:
    """Memory in use by one process, in GiB; None where it cannot be read."""

    pids: Sequence[int]
    """Pids of the process and of its child processes."""
    host_gib: float | None
    device_gib: float | None


@dataclass(frozen=True, slots=True)
class Fault:
    """Error of a training."""

    text: str
    """Traceback, or a message."""
    out_of_memory: bool


class ProbeActor:
    """Ray actor of a probe; returns a `Fault` if a training raises."""

    def __init__(
        self, source: Source, precision: Precision, environment: Mapping[str, str], folder: str | None
    ) -> None:
        os.environ.update(environment)
        os.chdir(source.folder)
        self._source, self._precision = source, precision
        self._folder = Path(folder or tempfile.gettempdir())
        self._code = source.resolve() if source.kind != "command" else None
        self._bench: TrainingBenchmark | None = None

    def make(
        self, way: Way, splits: Splits | None, trials: Sequence[Trial], threads: int, memory_gib: float | None = None
    ) -> Made | Fault:
        """Make the trainings, in place of earlier ones, and run their first steps.

        memory_gib: memory of each part of a split GPU.
        """
        settings = Settings(EPOCHS, threads, self._precision, self._folder, keeps_files=False)
        try:
            self.drop()
            self._bench = TrainingBenchmark(way, self._source, self._code, splits, trials, settings, memory_gib)
            return Made(self._bench.warm_up(), self._bench.evaluation_s())
        except BaseException as error:  # noqa: BLE001 - the user's code: what it raises is the answer
            return fault_of(error)

    def compile(self) -> float | Fault:
        """Compile the array's step and return the seconds that it took."""
        assert self._bench is not None
        started = time.perf_counter()
        try:
            self._bench.compile()
        except BaseException as error:  # noqa: BLE001 - no compiler here, or an operator that it does not know
            return fault_of(error)
        return time.perf_counter() - started

    def threads(self, count: int) -> None:
        """Set the CPU threads for the next windows; no effect for a framework other than torch."""
        if self._source.kind == "torch":
            import torch

            torch.set_num_threads(count)

    def window(self, start_at: float, seconds: float, notice_s: float) -> list[WorkWindow] | Fault:
        """Train for `seconds` from `start_at` on, in seconds since 1970; return one window for each training.

        notice_s: longest wait for it: this node's clock may be behind the driver's.
        """
        assert self._bench is not None
        try:
            return self._bench.window(min(start_at, time.time() + notice_s), seconds)
        except BaseException as error:  # noqa: BLE001 - the user's code: what it raises is the answer
            return fault_of(error)

    def taken(self) -> Taken:
        """Return the memory that this process holds now."""
        return Taken(memory_usage.family(), memory_usage.host_gib(), memory_usage.device_gib())

    def leave(self) -> None:
        """End the trainings and the process by itself: an MPS client killed by a signal may end the server too."""
        self.drop()
        ray.actor.exit_actor()

    def drop(self) -> None:
        """End the trainings, and free their memory."""
        if self._bench is not None:
            bench, self._bench = self._bench, None
            bench.close()


def fault_of(error: BaseException) -> Fault:
    """Return an exception as a fault, with its traceback."""
    return Fault("".join(traceback.format_exception(error)), is_out_of_memory(error))


def spawn(node_id: str, *arguments: Any) -> Any:
    """Start a `ProbeActor` on a node without any of Ray's resources, since the probe has the device for itself."""
    from raygpu.engines.cluster.node_actors import pinned

    return pinned(ProbeActor, node_id, max_concurrency=1).remote(*arguments)
