"""The progress of a production training: the reports of its ranks after each exchange, and the state so far."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from raygpu.planning.batches import NoiseScale
from raygpu.records.clock import process_age_s
from raygpu.records.trial_records import Device
from raygpu.search.trials import EpochResult, Scoring

Wish = Literal["", "checkpoint", "stop"]
"""Rank 0's request to all ranks: to be saved after this exchange, or to be saved and end."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a training, told after an exchange: the same on all ranks but for the metrics."""

    epoch: int
    """The one that runs, or that has just ended."""
    step: int
    """Optimizer steps of it that are done."""
    steps: int
    """Optimizer steps of a whole epoch."""
    lr: float
    """Learning rate of the last step."""
    wall_s: float
    """Since the last exchange, evaluation and checkpoints apart."""
    samples: tuple[int, ...]
    """By rank, since the last exchange."""
    rates: tuple[float | None, ...]
    """Samples/s of each rank's device alone, without waiting for others."""
    shares: tuple[int, ...]
    """Each rank's share of a whole batch from now on."""
    noise: NoiseScale | None
    wish: Wish
    result: EpochResult | None = None
    """Result of an epoch that has ended; its validation metrics on rank 0 only."""

    @property
    def samples_per_s(self) -> float:
        """Samples/s of all ranks together."""
        return sum(self.samples) / self.wall_s

    @property
    def efficiency(self) -> float | None:
        """Throughput of all ranks together over the sum of what each device does alone; None where one is unknown."""
        if any(rate is None for rate in self.rates):
            return None
        return self.samples_per_s / sum(rate or 0.0 for rate in self.rates)


@dataclass(frozen=True, slots=True)
class Best:
    """The best score so far, of an epoch whose checkpoint is kept."""

    score: float
    epoch: int


@dataclass(frozen=True, slots=True)
class Restored:
    """The history before a checkpoint, as the checkpoint itself tells it."""

    epoch: int
    """The last one that has ended."""
    metrics: Mapping[str, float]
    """The last epoch's."""
    best: Best | None


@dataclass(slots=True)
class History:
    """A production training so far."""

    scoring: Scoring
    devices: Sequence[Device]
    epochs: int
    device_of: dict[int, int] = field(default_factory=dict)
    """The index of each rank's device."""
    starts: int = 0
    """Number of times that all workers were started."""
    last: Progress | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    """The last epoch's."""
    epoch: int = 0
    """The last one that has ended."""
    best: Best | None = None
    checkpoints: int = 0
    first_epoch_s: float | None = None
    """Seconds from the start of this process to the end of its first epoch."""
    _samples: dict[int, int] = field(default_factory=dict)
    """By rank."""
    _wall_s: float = 0.0
    _steps: int = 0
    """Optimizer steps that this process has heard of."""
    _began: float | None = None
    """When the first worker did."""
    _started: float = field(default_factory=time.monotonic)

    def join(self, rank: int, device: int) -> None:
        """A worker has begun."""
        self.device_of[rank] = device
        self.starts += rank == 0
        if self._began is None:
            self._began = time.monotonic()

    def restore(self, earlier: Restored) -> None:
        """Take in what was trained before this process: the training goes on from one of its checkpoints."""
        self.epoch, self.metrics, self.best = earlier.epoch, dict(earlier.metrics), earlier.best
        self.checkpoints += 1

    def advance(self, progress: Progress) -> bool:
        """Take in what was told; whether an epoch has ended that had not ended before a worker was lost."""
        last, self.last = self.last, progress
        goes_on = last is not None and last.result is None and last.epoch == progress.epoch
        self._steps += max(0, progress.step - (last.step if goes_on and last is not None else 0))
        for rank, samples in enumerate(progress.samples):
            self._samples[rank] = self._samples.get(rank, 0) + samples
        self._wall_s += progress.wall_s
        if progress.result is None or progress.epoch <= self.epoch:
            return False
        self.epoch, self.metrics = progress.epoch, dict(progress.result.metrics)
        if self.first_epoch_s is None:
            self.first_epoch_s = process_age_s()
        return True

    def keep(self, epoch: int, score: float | None, *, best: bool) -> None:
        """A checkpoint was kept."""
        self.checkpoints += 1
        if best and score is not None:
            self.best = Best(score, epoch)

    @property
    def diverged(self) -> bool:
        """Whether the last epoch's training loss is not finite."""
        return not math.isfinite(self.metrics.get("train/loss", 0.0))

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    @property
    def samples_per_s(self) -> float | None:
        """Samples/s of all ranks together, in the time of training alone."""
        return sum(self._samples.values()) / self._wall_s if self._wall_s else None

    def by_device(self) -> dict[int, float]:
        """Samples/s that each device has trained, in the time of training alone."""
        found: dict[int, float] = {}
        for rank, samples in self._samples.items():
            index = self.device_of[rank]
            found[index] = found.get(index, 0.0) + samples / self._wall_s
        return found

    @property
    def time_left_s(self) -> float | None:
        """By the pace since the workers began, evaluations and checkpoints included; None before there is one."""
        last = self.last
        if last is None or self._began is None or not self._steps:
            return None
        left = last.steps * (self.epochs - self.epoch) - (0 if last.result else last.step)
        return max(0, left) * (time.monotonic() - self._began) / self._steps

    def curves(self) -> dict[str, float]:
        """Return the last exchange's values, by MLflow's names of metrics."""
        last = self.last
        assert last is not None
        found = {"lr": last.lr, "samples_per_s": last.samples_per_s}
        for rank, samples in enumerate(last.samples):
            name = f"gpu/{self.device_of[rank]}/samples_per_s"
            found[name] = found.get(name, 0.0) + samples / last.wall_s
            found[f"rank/{rank}/share"] = float(last.shares[rank])
        if last.efficiency is not None:
            found["scaling_efficiency"] = last.efficiency
        if last.noise is not None:
            found |= {"noise_scale": last.noise.samples, "noise_scale/low": last.noise.low}
            found["noise_scale/high"] = last.noise.high
        return found
