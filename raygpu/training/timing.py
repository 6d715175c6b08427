"""Measure the speed of trainings in one process: warmed up, then timed for a window while other processes do the same.

bench = TrainingBenchmark("fused", source, code, splits, trials, settings)
bench.warm_up()
window = bench.window(start_at, seconds)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from raygpu.config.sections import Way
from raygpu.config.source import Source
from raygpu.experiment import Experiment, Splits
from raygpu.search.trials import Trial
from raygpu.training.base import Settings, Training
from raygpu.training.start import start

LEAD = 0.15
"""Length of the uncounted work before and after a window, as a share of it: all others work during the window."""
Place = Callable[[], AbstractContextManager[Any]]
"""Function that returns the context in which a training runs on its device."""
T = TypeVar("T")
CHUNK_S = 0.01
"""Seconds of steps between two waits for the device: waiting after every small step would slow it down."""


@dataclass(frozen=True, slots=True)
class WorkWindow:
    """The work of one training, or of one array, in a period of time.

    Moments are of the machine's monotonic clock, the same for all of its processes.
    """

    work: float
    """Training samples; reports of a function or script, which runs its own loop."""
    seconds: float
    began: float = 0.0
    """Moment at which the first counted step began."""
    since: float = 0.0
    """Moment at which the uncounted work before it began."""
    until: float = 0.0
    """Moment at which the uncounted work after the last counted step ended."""

    @property
    def rate(self) -> float:
        """Work per second."""
        return self.work / self.seconds

    @property
    def ended(self) -> float:
        """Moment at which the last counted step ended."""
        return self.began + self.seconds


def covered(windows: Sequence[WorkWindow]) -> float:
    """Return the smallest share of any of these windows in which all trainings worked.

    Rates add up only if this is near 1. A process that begins its window late is timed when the others have ended
    theirs: it then has the device to itself, and the sum of all rates is one that was never reached.
    """
    since, until = max(window.since for window in windows), min(window.until for window in windows)
    both = (min(window.ended, until) - max(window.began, since) for window in windows)
    return max(0.0, min(part / window.seconds for part, window in zip(both, windows, strict=True)))


@runtime_checkable
class Stepped(Protocol):
    """A training whose loop raygpu runs."""

    def trial_steps(self) -> Iterator[int]:
        """Take steps without end, to be timed; yield the samples of each."""

    def trial_evaluation(self) -> tuple[int, int]:
        """Evaluate a first batch, to be timed; return its samples, and those of a whole evaluation."""

    def wait(self) -> None:
        """Wait until the device has finished its work."""

    def close(self) -> None:
        """Free the training's memory."""


@runtime_checkable
class Pausable(Protocol):
    """A function or script, which computes on while nobody asks for its next epoch."""

    def pause(self) -> None:
        """Stop the training in place."""

    def resume(self) -> None:
        """Let a paused training go on."""


def _nothing() -> None: ...


@dataclass(slots=True)
class _Runner:
    """One training, or one array of them, step by step."""

    steps: Iterator[int]
    """Iterator that takes a step and gives its work."""
    wait: Callable[[], None]
    """Function that waits until the device has finished its work."""
    place: Place = nullcontext
    evaluate: Callable[[], tuple[int, int]] | None = None
    """Function that evaluates a batch; returns its samples, and those of a whole evaluation."""
    pause: Callable[[], None] = _nothing
    resume: Callable[[], None] = _nothing
    """Function that ends a pause; between windows a training is paused, while others have theirs."""
    chunk: int = 1
    step_s: float = 0.0

    def warm_up(self) -> None:
        """Take the first steps, which allocate, trace and compile; then time one."""
        with self.place():
            next(self.steps)
            self.wait()
            started = time.perf_counter()
            next(self.steps)
            self.wait()
            self.step_s = time.perf_counter() - started
            self.chunk = max(1, int(CHUNK_S / max(self.step_s, 1e-6)))
            self.pause()

    def window(self, start_at: float, seconds: float) -> WorkWindow:
        """Work from `start_at` on, timed for `seconds` after a lead. A runner that begins late is timed for as long."""
        with self.place():
            _sleep_until(start_at)
            since = time.perf_counter()
            self.resume()
            self._run_until(since + LEAD * seconds)
            began = time.perf_counter()
            work = self._run_until(began + seconds)
            ended = time.perf_counter()
            self._run_until(ended + LEAD * seconds)
            until = time.perf_counter()
            self.pause()
        return WorkWindow(work, ended - began, began, since, until)

    def evaluation_s(self) -> float | None:
        """Return the seconds of an evaluation; None if raygpu does not run the loop."""
        if self.evaluate is None:
            return None
        with self.place():
            self.evaluate()
            self.wait()
            started = time.perf_counter()
            part, total = self.evaluate()
            self.wait()
            return (time.perf_counter() - started) * total / part

    def _run_until(self, end: float) -> float:
        """Take at least one chunk of steps; return their work. A chunk shrinks if its steps take longer beside others.

        end: moment of the monotonic clock.
        """
        work = 0.0
        while not work or time.perf_counter() < end:
            started = time.perf_counter()
            for _ in range(self.chunk):
                work += next(self.steps)
            self.wait()
            if time.perf_counter() - started > 2 * CHUNK_S:
                self.chunk = max(1, self.chunk // 2)
        return work


class TrainingBenchmark:
    """Trainings of one process that run at the same time, in one of the ways to share a device.

    way: "fused" trains all trials as one array, "threads" each in a thread, "split" each on a logical device of
    TensorFlow's; the other ways have one trial in a process. code: the object that `source` names; None for a command.
    memory_gib: memory of each part of a split GPU.
    """

    def __init__(
        self,
        way: Way,
        source: Source,
        code: Any,
        splits: Splits | None,
        trials: Sequence[Trial],
        settings: Settings,
        memory_gib: float | None = None,
    ) -> None:
        trials = [replace(trial, fold=None) for trial in trials]  # speed does not depend on which samples are left out
        self._array: Any = None
        self._close: list[Callable[[], None]] = []
        self._runners: list[_Runner] = []
        if way == "fused":
            from raygpu.training.fused.model_array import TorchArray
            from raygpu.training.fused.width import use_graphs

            assert splits is not None
            self._array = TorchArray(cast(Experiment, code), splits, trials, settings, width=len(trials))
            self._close.append(self._array.close)
            use_graphs(self._array)
            self._runners = [self._array_runner()]
        else:
            places: list[Place] = [nullcontext] * len(trials)
            if way == "split":
                from raygpu.training.keras.logical_devices import make_logical_devices

                places = make_logical_devices(len(trials), memory_gib)
            for trial, place in zip(trials, places, strict=True):
                self._runners.append(self._solo(partial(start, source, code, splits, trial, settings), place))
        self._pool = ThreadPoolExecutor(
            len(self._runners), initializer=_no_denormals if source.kind == "torch" else None
        )

    def _array_runner(self) -> _Runner:
        array, width = self._array, len(self._array.trials)
        steps = (width * array.batch_size for _ in array.trial_steps(width))
        return _Runner(steps, array.wait, evaluate=partial(array.trial_evaluation, width))

    def _solo(self, make: Callable[[], Training], place: Place) -> _Runner:
        with place():
            training: Any = make()
        if isinstance(training, Stepped):
            self._close.append(training.close)
            return _Runner(training.trial_steps(), training.wait, place, training.trial_evaluation)
        reports = _Reports(training, make)
        self._close.append(reports.close)
        return _Runner(reports.steps(), _nothing, place, pause=reports.pause, resume=reports.resume)

    def warm_up(self) -> float:
        """Warm up all trainings at once; return the seconds of the slowest step."""
        self._all(_Runner.warm_up)
        return max(runner.step_s for runner in self._runners)

    def compile(self) -> None:
        """Compile the array's step. Raises any exception of the compiler."""
        self._array.program.compile(len(self._array.trials), self._array.batch_size)
        self._runners = [self._array_runner()]
        self.warm_up()

    def window(self, start_at: float, seconds: float) -> list[WorkWindow]:
        """Return a window of each training, or one of an array. start_at: seconds since 1970."""
        return self._all(lambda runner: runner.window(start_at, seconds))

    def evaluation_s(self) -> float | None:
        """Return the seconds of an evaluation of all trainings; None if raygpu does not run the loop."""
        seconds = self._all(_Runner.evaluation_s)
        return None if None in seconds else max(cast(list[float], seconds))

    def _all(self, act: Callable[[_Runner], T]) -> list[T]:
        if len(self._runners) == 1:  # without a thread: torch's threads and modes are the thread's own
            return [act(self._runners[0])]
        return list(self._pool.map(act, self._runners))

    def close(self) -> None:
        """Free memory, threads and processes."""
        self._runners = []
        for close in self._close:
            close()
        self._pool.shutdown()


class _Reports:
    """A function or script, from report to report; it begins anew after its end."""

    def __init__(self, training: Training, make: Callable[[], Training]) -> None:
        self._training, self._make = training, make

    def steps(self) -> Iterator[int]:
        """Yield 1 for each report, without end."""
        while True:
            if self._training.run_epoch() is None:
                raise RuntimeError("it ended without a report; call raygpu.report(...), or print lines of JSON")
            yield 1
            while self._training.run_epoch() is not None:
                yield 1
            self._training.close()
            self._training = self._make()

    def pause(self) -> None:
        """Stop a training that runs on by itself."""
        if isinstance(self._training, Pausable):
            self._training.pause()

    def resume(self) -> None:
        """Let a paused training go on."""
        if isinstance(self._training, Pausable):
            self._training.resume()

    def close(self) -> None:
        """End the training."""
        self._training.close()


def _no_denormals() -> None:
    """Flush denormal numbers in this thread, as `prepare_torch` does in its own."""
    import torch

    torch.set_flush_denormal(True)


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.time()))
