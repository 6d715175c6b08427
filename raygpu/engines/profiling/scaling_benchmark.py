"""The speed-up of one training on several devices, with its batch unchanged: measured, or bounded by one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from fractions import Fraction

from raygpu.config import TrainConfig
from raygpu.engines.cluster.cluster import Cluster
from raygpu.engines.profiling.device_benchmark import DeviceBenchmark
from raygpu.engines.profiling.short_trainings import ShortTrainings
from raygpu.engines.profiling.workload import Workload
from raygpu.engines.train.production import TrainingFailed
from raygpu.planning.advice import Scaling, Speedup, numbers_of_devices
from raygpu.planning.batch_shares import split_batch
from raygpu.planning.confidence import Interval, interval
from raygpu.planning.gpu_shares import floor_to_step
from raygpu.planning.worker_devices import WorkerDevices, place_workers
from raygpu.storage import Storage
from raygpu.training.hyperparameters import OptimizerSettings

BOUNDED = 8
"""Largest number of devices for which one device gives an upper bound."""


@dataclass(frozen=True, slots=True)
class ScalingBenchmark:
    """Short data-parallel trainings on more and more devices of this machine."""

    cluster: Cluster
    workload: Workload
    checkpoints: Storage
    """A folder for the trainings' own files."""
    rounds: int
    turn_s: float
    """Seconds of one measurement."""
    say: Callable[[str], None]

    @property
    def batch_size(self) -> int:
        """Samples of a step, on all devices together."""
        assert self.workload.splits is not None  # functions and scripts have no batches to split
        return min(
            OptimizerSettings.of(self.workload.trial.hyperparameters).batch_size, self.workload.splits.samples_per_epoch
        )

    def scaling(self, devices: int) -> Scaling:
        """Return the speed-ups on 1, 2, 4 ... to this number of devices; with one device, upper bounds of them.

        Raises RaygpuError if the training diverges, TrainingFailed if it fails on one device for another reason than
        memory, and KeyboardInterrupt.
        """
        if devices > 1:
            return self.measure(numbers_of_devices(devices, self.batch_size))
        numbers = numbers_of_devices(BOUNDED, self.batch_size)
        # No parts of one sample: a model with BatchNorm cannot be trained on it.
        return Scaling(tuple(self.bound([n for n in numbers if n == 1 or n < self.batch_size])), "one_device")

    def measure(self, numbers: Sequence[int]) -> Scaling:
        """Train on these numbers of devices, up and down again. numbers: rising, 1 first. Raises as `scaling` does."""
        rates: dict[int, list[float]] = {n: [] for n in numbers}
        notes: list[str] = []
        for n in [*numbers, *reversed(numbers)]:
            if n not in rates:
                continue
            try:
                rates[n] += self._turns(n, max(numbers))
            except TrainingFailed as error:
                if n == 1 and not error.out_of_memory:
                    raise
                notes.append(f"one training on {n} devices: not measured: {error}")
                del rates[n]
        if 1 not in rates:
            return Scaling((), "measured", tuple(notes))
        one = interval(rates[1])
        speedups = [Speedup(n, Interval.exactly(1.0) if n == 1 else interval(rates[n]).over(one)) for n in rates]
        return Scaling(tuple(speedups), "measured", tuple(notes))

    def bound(self, numbers: Sequence[int]) -> list[Speedup]:
        """Measure one device with 1/n of a batch, for each n: n such devices are no faster than n times that.

        numbers: rising, 1 first. The exchange of gradients is not in it. Raises RaygpuError if a training fails.
        """
        shares = {n: -(-self.batch_size // n) for n in numbers}  # the largest share decides
        where = self._placing(1, 1)
        benchmark = DeviceBenchmark(self.cluster, where, self.workload, window_s=self.turn_s, rounds=2 * self.rounds)
        try:
            (curve,) = benchmark.around(sorted(set(shares.values())), self.say)
        finally:
            benchmark.close()
        seconds = {n: interval([share / rate for rate in curve.rounds[share]]) for n, share in shares.items()}
        return [Speedup(n, Interval.exactly(1.0) if n == 1 else seconds[1].over(seconds[n])) for n in numbers]

    def _turns(self, devices: int, most: int) -> list[float]:
        """Train on this number of devices; return the samples/s of all together, by turn."""
        config = TrainConfig(experiment=self.workload.source.name, workers=devices)
        shares = split_batch(self.batch_size, [1.0] * devices)
        where = self._placing(devices, most)
        trainings = ShortTrainings(config, self.workload, self.cluster, where, self.checkpoints, self.say)
        with closing(trainings):
            rates = [sum(trainings.train(shares, self.turn_s)) for _ in range(self.rounds)]
        self.say(f"data parallel, {devices} device{'s' if devices > 1 else ''}: {interval(rates)} samples/s")
        return rates

    def _placing(self, devices: int, most: int) -> WorkerDevices:
        """Place the workers. Each has the same CPUs on any number of devices, for a device to mean the same."""
        simulated = all(device.uuid is None for device in self.cluster.devices)
        config = TrainConfig(experiment=self.workload.source.name, workers=devices)
        where = place_workers(self.cluster.nodes, config, self.workload.source.kind, simulated=simulated)
        cpus = Fraction(sum(node.num_cpus for node in self.cluster.nodes)).limit_denominator(10_000)
        return replace(where, cpus=min(where.cpus, floor_to_step(cpus / most)))
