"""A rough idea of a torch training's speed, by a few steps on the CPU in the process that plans.

    glance = QuickEstimate(source, experiment, splits, precision)
    glance.samples_per_s(trial)
    glance.step_cost(trial)  # for a GPU
    points = glance.points(trials, num_cpus)

A sweep that is too short for a probe is planned by this estimate.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from raygpu.config.sections import Precision, Way
from raygpu.config.source import Source
from raygpu.experiment import Experiment, Splits, num_samples
from raygpu.planning.batches import EVALUATION_BATCH
from raygpu.planning.profiles import Point
from raygpu.planning.step_cost import StepCost
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.fused.vmap_modes import plain_attention
from raygpu.training.hyperparameters import OptimizerSettings
from raygpu.training.own_copy import own_copy
from raygpu.training.timing import TrainingBenchmark
from raygpu.training.torch.solo import TorchSolo
from raygpu.training.torch.step_counter import StepCounter

SAMPLES = 32
"""Largest number of samples of the step that gives the first estimate."""
WINDOW_S = 0.1
ROUNDS = 2
STEPS = 8
"""Number of steps of each training in `points`."""
EVALUATED = 2 / 3
"""Cost of two evaluations of a batch, in steps: without a backward pass, which makes a step three times as long."""


class QuickEstimate:
    """Short measurements of one experiment's trials, in this process."""

    def __init__(self, source: Source, experiment: Experiment, splits: Splits, precision: Precision) -> None:
        self._source = source
        self._experiment = experiment
        self._splits = splits
        self._precision = precision

    def samples_per_s(self, trial: Trial) -> float:
        """Return the samples/s of one training alone, by two steps; 0 where one fails."""
        try:
            with self._steps(trial) as (steps, _):
                next(steps)
                started = time.perf_counter()
                return next(steps) / (time.perf_counter() - started)
        except Exception:  # noqa: BLE001 - the user's code: its trials show it, each alone
            return 0.0

    def step_cost(self, trial: Trial) -> StepCost | None:
        """Return what a step of one training takes on a GPU, counted in two steps on the CPU; None where one fails."""
        try:
            with self._steps(trial) as (steps, parts):
                next(steps)  # makes the optimizer's state
                with plain_attention(), StepCounter() as counter:
                    count = next(steps)
        except Exception:  # noqa: BLE001 - the user's code, or an operator that cannot be counted
            return None
        return StepCost(round(parts * count), counter.num_operators, parts * counter.flop, self._precision)

    def samples(self, trial: Trial) -> float:
        """Return the cost of `points` for each trial, as a number of samples of training steps."""
        evaluated = min(EVALUATION_BATCH, num_samples(self._splits.validation_inputs))
        return STEPS * OptimizerSettings.of(trial.hyperparameters).batch_size + EVALUATED * evaluated

    def points(self, trials: Sequence[Trial], num_cpus: int) -> list[Point]:
        """Estimate what a probe of a simulated device might find: one training, one on each CPU, all as an array.

        Measured on one thread: Ray may be starting on the same CPUs, which slows threads that wait for each other most.
        For more CPUs it is assumed that packed processes do not disturb each other, and that twice the CPUs make an
        array 1.4 times as fast. Raises what the training raises.
        """
        with self._as_before(), contextlib.ExitStack() as stack:
            alone = stack.enter_context(self._bench("process", trials[:1]))
            array = stack.enter_context(self._bench("fused", trials)) if len(trials) > 1 else None
            benches = [bench for bench in (alone, array) if bench is not None]
            rounds = [[_rate(bench) for bench in benches] for _ in range(ROUNDS)]
            rates = [max(rates_of_rounds) for rates_of_rounds in zip(*rounds, strict=True)]
            evaluations = [bench.evaluation_s() for bench in benches]
        process = Point("process", 1, rates[0], 1.0, evaluation_s=evaluations[0])
        points = [process]
        if num_cpus > 1:
            points.append(replace(process, n=num_cpus, samples_per_s=num_cpus * rates[0], gain=float(num_cpus)))
        if array is not None:
            rate = math.sqrt(num_cpus) * rates[1]
            points.append(Point("fused", len(trials), rate, rate / rates[0], evaluation_s=evaluations[1]))
        return points

    @contextlib.contextmanager
    def _steps(self, trial: Trial) -> Iterator[tuple[Iterator[int], float]]:
        """Yield the steps of a training on few samples, and the size of its own batches in parts of these samples."""
        batch = min(OptimizerSettings.of(trial.hyperparameters).batch_size, self._splits.num_train)
        count = min(SAMPLES, batch)
        trial = replace(trial, fold=None, hyperparameters={**trial.hyperparameters, "batch_size": count})
        with self._as_before():
            experiment, part = own_copy(self._experiment), self._splits.first(count)
            solo = TorchSolo(experiment, part, trial, self._settings(), torch.device("cpu"))
            yield solo.trial_steps(), batch / count

    @contextlib.contextmanager
    def _bench(self, way: Way, trials: Sequence[Trial]) -> Iterator[TrainingBenchmark]:
        bench = TrainingBenchmark(way, self._source, self._experiment, self._splits, trials, self._settings())
        try:
            bench.warm_up()
            yield bench
        finally:
            bench.close()

    def _settings(self) -> Settings:
        return Settings(1, 1, self._precision, Path())

    @contextlib.contextmanager
    def _as_before(self) -> Iterator[None]:
        """Run inside with the experiment's relative paths; restore this process' number of threads."""
        threads = torch.get_num_threads()
        try:
            with contextlib.chdir(self._source.folder):
                yield
        finally:
            torch.set_num_threads(threads)


def _rate(bench: TrainingBenchmark) -> float:
    return sum(window.rate for window in bench.window(time.time(), WINDOW_S))
