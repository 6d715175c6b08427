"""The progress of a production training: the reports of its ranks after each exchange, and the state so far."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from raygpu.planning.noise_scale import NoiseScale
from raygpu.records.clock import command_age_s
from raygpu.records.curve import Curve
from raygpu.records.device import Device
from raygpu.records.training_pace import TrainingPace
from raygpu.search.scoring import Scoring
from raygpu.search.trials import EpochResult

ControlRequest = Literal["", "checkpoint", "stop"]
"""Rank 0's request to all ranks: to be saved after this exchange, or to be saved and end."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a training, told after an exchange: the same on all ranks but for the metrics."""

    epoch: int
    """Epoch that runs, or that has just ended."""
    step: int
    """Optimizer steps done in this epoch."""
    steps: int
    """Optimizer steps of a whole epoch."""
    lr: float | None
    """Learning rate of the last step; None where raygpu does not run the loop."""
    wall_s: float
    """Seconds since the last exchange, without evaluation and checkpoints."""
    samples: tuple[int, ...]
    """Samples of each rank since the last exchange; empty where raygpu does not run the loop."""
    rates: tuple[float | None, ...]
    """Samples/s of each rank's device alone, without waiting for others."""
    shares: tuple[int, ...]
    """Each rank's share of a whole batch from now on."""
    noise: NoiseScale | None
    request: ControlRequest
    result: EpochResult | None = None
    """Result of an epoch that has ended; its validation metrics on rank 0 only."""
    diverged: bool = False
    """Whether the epoch that has ended is one of a diverged training; the same on all ranks."""

    @property
    def samples_per_s(self) -> float | None:
        """Samples/s of all ranks together; None where raygpu does not run the loop."""
        return sum(self.samples) / self.wall_s if self.samples else None

    @property
    def efficiency(self) -> float | None:
        """Throughput of all ranks over the sum of the devices' throughputs alone; None if one of these is unknown."""
        samples_per_s = self.samples_per_s
        if samples_per_s is None or any(rate is None for rate in self.rates):
            return None
        return samples_per_s / sum(rate or 0.0 for rate in self.rates)


@dataclass(frozen=True, slots=True)
class Best:
    """The best score so far, of an epoch whose checkpoint is kept."""

    score: float
    epoch: int


@dataclass(frozen=True, slots=True)
class Restored:
    """The history before a checkpoint, read from the checkpoint itself."""

    epoch: int
    """Last epoch that has ended."""
    metrics: Mapping[str, float]
    """Metrics of the last epoch."""
    best: Best | None
    ended: bool = False
    """Whether the training has ended already."""
    earlier: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Metrics of the epochs before the last one, by epoch, as far back as the checkpoint has them."""


@dataclass(slots=True)
class History:
    """The state of a production training so far."""

    scoring: Scoring
    devices: Sequence[Device]
    epochs: int
    device_of: dict[int, int] = field(default_factory=dict)
    """Index of each rank's device."""
    starts: int = 0
    """Number of times that all workers were started."""
    last: Progress | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the last epoch."""
    epoch: int = 0
    """Last epoch that has ended."""
    restored: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Metrics of epochs up to the checkpoint from which the training goes on, by epoch."""
    best: Best | None = None
    checkpoints: int = 0
    ended_by_itself: bool = False
    """Whether a function has ended before its last epoch."""
    first_epoch_s: float | None = None
    """Seconds from the start of this process to the end of its first epoch."""
    spent: dict[str, float] = field(default_factory=dict)
    """Seconds of rank 0 by activity, since this process began."""
    _samples: dict[int, int] = field(default_factory=dict)
    """Samples of each rank."""
    _wall_s: float = 0.0
    _pace: TrainingPace = field(default_factory=TrainingPace)
    _curve: Curve = field(default_factory=Curve)
    _started: float = field(default_factory=time.monotonic)

    def join(self, rank: int, device: int) -> None:
        """Note that a worker has begun. device: index of its device."""
        self.device_of[rank] = device
        self.starts += rank == 0
        if rank == 0:
            self._pace.start(time.monotonic())
        if "joining" not in self.spent:
            self._spend("joining", time.monotonic() - self._started)

    def restore(self, earlier: Restored) -> None:
        """Take in the training before a start of the workers; what an earlier start has reported after it no longer
        counts."""
        self.epoch, self.metrics, self.best = earlier.epoch, dict(earlier.metrics), earlier.best
        self.restored = {**earlier.earlier, **({earlier.epoch: earlier.metrics} if earlier.metrics else {})}
        self.ended_by_itself = earlier.ended and earlier.epoch < self.epochs
        self._curve.cut(earlier.epoch)

    def advance(self, progress: Progress) -> bool:
        """Take in a report; return whether an epoch has ended."""
        self.last = progress
        if progress.result is None:
            self._pace.step(time.monotonic(), progress.step, progress.steps)
        else:
            self._pace.end_epoch(time.monotonic())
        for rank, samples in enumerate(progress.samples):
            self._samples[rank] = self._samples.get(rank, 0) + samples
        self._wall_s += progress.wall_s
        self._spend("train" if progress.samples else "program", progress.wall_s)  # a function runs its own loop
        if progress.result is not None:
            self._spend("evaluation", progress.result.validate_s or 0.0)
            if (waited_s := progress.result.waited_s) is not None:
                self._spend("data", waited_s)
                self._spend("train", -waited_s)
        if progress.result is None:
            return False
        self.epoch, self.metrics = progress.epoch, dict(progress.result.metrics)
        score = self.scoring.value(progress.result.metrics)
        if score is not None and math.isfinite(score):
            self._curve.add(progress.epoch, score)
        if self.first_epoch_s is None:
            self.first_epoch_s = command_age_s()
        return True

    def _spend(self, activity: str, seconds: float) -> None:
        self.spent[activity] = self.spent.get(activity, 0.0) + seconds

    def keep(self, epoch: int, score: float | None, *, best: bool, ended: bool = False, took_s: float = 0.0) -> None:
        """Note that a checkpoint was kept. best: whether its score is the best so far. ended: whether the training has
        ended by itself. took_s: seconds for which the training waited."""
        self.checkpoints += 1
        self._spend("checkpoints", took_s)
        self.ended_by_itself = self.ended_by_itself or ended
        if best and score is not None:
            self.best = Best(score, epoch)

    @property
    def diverged(self) -> bool:
        """Whether the training has diverged in its last epoch."""
        return self.last is not None and self.last.diverged

    @property
    def has_ended(self) -> bool:
        """Whether there is nothing left to train."""
        return self.ended_by_itself or self.epoch >= self.epochs

    @property
    def elapsed_s(self) -> float:
        """Seconds since this object was made."""
        return time.monotonic() - self._started

    @property
    def samples_per_s(self) -> float | None:
        """Samples/s of all ranks together, in the time of training alone; None before a report that has samples."""
        return sum(self._samples.values()) / self._wall_s if self._samples and self._wall_s else None

    def by_device(self) -> dict[int, float]:
        """Return the samples/s of each device, in the time of training alone."""
        return self._rates(self._samples, self._wall_s)

    def latest_by_device(self) -> dict[int, float]:
        """Return the samples/s of each device between the last two exchanges; empty before a report that has
        samples."""
        return {} if self.last is None else self._rates(dict(enumerate(self.last.samples)), self.last.wall_s)

    def _rates(self, samples: Mapping[int, float], wall_s: float) -> dict[int, float]:
        """Return the samples/s of each device. samples: by rank."""
        rates: dict[int, float] = {}
        for rank, number in samples.items():
            index = self.device_of[rank]
            rates[index] = rates.get(index, 0.0) + number / wall_s
        return rates

    @property
    def time_left_s(self) -> float | None:
        """Seconds left by the last epochs' pace, evaluations and checkpoints included; None while it is not known."""
        if self.has_ended:
            return 0.0
        left_s = self._pace.left_s(time.monotonic(), self.epochs - self.epoch)
        return None if left_s is None else max(1.0, left_s)  # 0 is the end, which a slow step puts off

    def curve(self) -> list[float]:
        """Return the metric by epoch, since this process began, in a bounded number of points."""
        return self._curve.points()

    def curves(self) -> dict[str, float]:
        """Return the last exchange's values, by MLflow's names of metrics; without those that do not exist."""
        last = self.last
        assert last is not None
        training_metrics = {"lr": last.lr, "samples_per_s": last.samples_per_s}
        metrics = {name: value for name, value in training_metrics.items() if value is not None}
        metrics |= {f"gpu/{index}/samples_per_s": rate for index, rate in self.latest_by_device().items()}
        metrics |= {f"rank/{rank}/share": float(share) for rank, share in enumerate(last.shares[: len(last.samples)])}
        if last.efficiency is not None:
            metrics["scaling_efficiency"] = last.efficiency
        if last.noise is not None:
            metrics |= {"noise_scale": last.noise.samples, "noise_scale/low": last.noise.low}
            metrics["noise_scale/high"] = last.noise.high
        return metrics
