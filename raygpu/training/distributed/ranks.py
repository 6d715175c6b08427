"""Base of data-parallel trainings in every framework: the loop, the split of a batch, the exchange between ranks.

Every rank decides by itself and alike, from the same reports of all ranks, so no rank has to be asked.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from raygpu.planning.batch_shares import ShareBalancer, parts
from raygpu.planning.batches import batch_bounds
from raygpu.planning.noise_scale import NoiseEstimator, NoiseScale
from raygpu.records.training_progress import Progress, Wish
from raygpu.search.trials import EpochResult
from raygpu.training.hyperparameters import OptimizerSettings

EXCHANGE_S = 1.0
"""Approximate seconds between two exchanges."""
FIRST = (3, 6, 12, 24)
"""Steps of the first exchanges, whatever the time: a split by speed has settled after them."""
LONGEST = 1000
"""Largest number of steps between two exchanges."""
NOISE_EVERY = 8
"""Interval, in steps, of measurements for the gradient noise scale."""


class Ranks(Protocol):
    """This process among those that train together. A rank is a device; most processes drive one."""

    rank: int
    """Rank of this process' first device."""
    local: int
    """Devices of this process."""
    world: int
    """Devices of all processes."""

    def gather(self, values: Sequence[Any]) -> list[Any]:
        """Return each rank's value, by rank. All processes call it, and each waits.

        values: one for each rank of this process.
        """


class OneRank:
    """The single rank of a training on one device."""

    rank, local, world = 0, 1, 1

    def gather(self, values: Sequence[Any]) -> list[Any]:
        """Return the values as a list."""
        return list(values)


@dataclass(frozen=True, slots=True)
class ParallelSettings:
    """Settings of a training that is spread over devices."""

    global_batch: int
    """Samples of an optimizer step, on all devices together."""
    accumulate: int = 1
    """Parts in which a device takes its share of a batch."""
    ratios: tuple[float, ...] = ()
    """Ratios of the devices' shares; empty for equal ones."""
    auto_shares: bool = False
    """Whether the devices' speeds are measured, and the shares follow them."""
    compile: bool = False
    optimizer_settings: OptimizerSettings | None = None
    """Settings of the optimizer steps, with the learning rate scaled; None for the hyper-parameters' own."""
    least: int = 1
    """Smallest number of samples on which the model can be trained at once."""
    sharded: bool = False
    """Whether parameters, gradients and the optimizer's state are sharded over the ranks."""


@dataclass(frozen=True, slots=True)
class Report:
    """A rank's report to the others on its steps since the last exchange."""

    samples: int
    """Number of this rank's own samples since the last exchange."""
    rate: float | None
    """Median samples/s of the device alone in whole steps, without waiting for others; None without such steps."""
    most: float
    """Samples of a global batch whose share fits this rank's memory."""
    loss_sum: float
    """Numerator of the loss of the rank's samples of this epoch; of a plain mean, the sum of their losses."""
    loss_weight: float = 0.0
    """Denominator of that loss; of a plain mean, the number of samples; 0 of a `Sum`."""
    squares: tuple[float, ...] = ()
    """|g|^2 of the rank's part of the gradient, at each measured step."""
    wish: Wish = ""


@dataclass(frozen=True, slots=True)
class LocalBatch:
    """A rank's samples of a batch: those of the epoch's order from index `first` on."""

    first: int
    sizes: list[int]
    """Number of samples of each part, one after the other."""

    @property
    def samples(self) -> int:
        """Number of samples of all parts."""
        return sum(self.sizes)

    def places(self) -> Iterator[tuple[int, int]]:
        """Yield the index of each part's first sample in the epoch's order, and its number of samples."""
        first = self.first
        for size in self.sizes:
            yield first, size
            first += size


@dataclass(frozen=True, slots=True)
class Norm:
    """A step that was measured for the gradient noise scale."""

    whole: float
    """|g|^2 of the whole gradient."""
    shares: Sequence[int]
    """Number of samples of the batch, by rank."""


@dataclass(slots=True)
class Coordinator:
    """Keeps the ranks in step: schedules their exchanges, and splits each batch."""

    parallel: ParallelSettings
    ranks: Ranks
    noise: NoiseEstimator = field(default_factory=NoiseEstimator)
    balancer: ShareBalancer = field(init=False)
    next_step: int = FIRST[0]
    """Step of this process after which the next exchange follows."""
    taken: int = 0
    """Number of steps that this process has taken."""

    def __post_init__(self) -> None:
        if len(self.parallel.ratios) not in (0, self.ranks.world):
            raise ValueError(f"{len(self.parallel.ratios)} ratios for {self.ranks.world} ranks")
        self.balancer = ShareBalancer(list(self.parallel.ratios or [1.0] * self.ranks.world))

    @property
    def shares(self) -> tuple[int, ...]:
        """Number of samples of a whole batch, by rank."""
        return tuple(self._split(self.parallel.global_batch))

    def _split(self, total: int) -> list[int]:
        """Return the samples of each rank, none with fewer than the model needs."""
        shares, least = self.balancer.split(total), self.parallel.least
        while min(shares) < least:
            largest = max(range(len(shares)), key=shares.__getitem__)
            if shares[largest] <= least:
                raise ValueError(f"{total} samples for {len(shares)} devices; each needs {least} at least")
            shares[shares.index(min(shares))] += 1
            shares[largest] -= 1
        return shares

    def bounds(self, num_samples: int) -> list[tuple[int, int]]:
        """Return the start and end of each global batch of an epoch."""
        least = max(2, self.parallel.least * self.ranks.world)
        return list(batch_bounds(num_samples, self.parallel.global_batch, least))

    def local_batches(self, start: int, end: int) -> list[LocalBatch]:
        """Return each rank's local_batch of a global batch, all in the same number of parts: a layer may wait for the
        others in each."""
        shares = self._split(end - start)
        number = min(self.parallel.accumulate, *(share // self.parallel.least for share in shares))
        firsts = [start + sum(shares[:rank]) for rank in range(len(shares))]
        return [LocalBatch(first, parts(own, number)) for first, own in zip(firsts, shares, strict=True)]

    def due(self) -> bool:
        """Count a step; return whether an exchange follows it."""
        self.taken += 1
        return self.taken >= self.next_step

    @property
    def measures_speed(self) -> bool:
        """Whether the next step is timed, where timing has a cost."""
        return self.taken < FIRST[-1] or self.taken % NOISE_EVERY == 0

    @property
    def measures_noise(self) -> bool:
        """Whether the next step is measured for the gradient noise scale."""
        return self.ranks.world > 1 and self.taken % NOISE_EVERY == 0

    def exchange(self, own: Sequence[Report], norms: Sequence[Norm], wall_s: float) -> ExchangeResult:
        """Exchange reports with the other ranks, and decide alike on the next split and the next exchange.

        own: reports of this process' ranks. norms: of each step measured for the noise scale. wall_s: seconds since the
        last exchange.
        """
        told: list[tuple[Report, float]] = self.ranks.gather([(report, wall_s) for report in own])
        reports = [report for report, _ in told]
        for index, norm in enumerate(norms):
            self.noise.add(norm.shares, [r.squares[index] for r in reports], norm.whole)
        rates = tuple(r.rate for r in reports)
        if self.parallel.auto_shares and all(rates):
            self.balancer.most = [r.most for r in reports]
            self.balancer.tell(self.shares, [rate or 0.0 for rate in rates])
        self._plan_next(told[0][1])
        return ExchangeResult(
            tuple(r.samples for r in reports),
            rates,
            self.noise.scale(),
            sum(r.loss_sum for r in reports) / (sum(r.loss_weight for r in reports) or 1.0),
            reports[0].wish,
        )

    def _plan_next(self, wall_s: float) -> None:
        """Schedule the next exchange. wall_s: rank 0's seconds of the steps since the last exchange."""
        soon = next((number for number in FIRST if number > self.taken), None)
        steps = max(1, self.taken - self._last)
        self._last = self.taken
        if soon is not None:
            self.next_step = soon
            return
        self.next_step = self.taken + max(1, min(LONGEST, round(EXCHANGE_S * steps / max(wall_s, 1e-9))))

    _last: int = 0


@dataclass(frozen=True, slots=True)
class ExchangeResult:
    """Result of an exchange, the same on every rank."""

    samples: tuple[int, ...]
    rates: tuple[float | None, ...]
    noise: NoiseScale | None
    loss: float
    """Loss of the epoch so far."""
    wish: Wish


class ParallelTraining(ABC):
    """One process' part of a data-parallel training; all processes make the same calls."""

    epoch = 0
    """Last epoch that has ended."""
    step = 0
    """Number of steps done in the epoch that runs."""
    evaluates_together = False
    """Whether all ranks take part in an evaluation."""

    def __init__(
        self,
        parallel: ParallelSettings,
        ranks: Ranks,
        wish: Callable[[], Wish],
        settings: OptimizerSettings,
        samples_per_epoch: int,
        epochs: int,
    ) -> None:
        """Prepare the training. wish: called on rank 0 before each exchange."""
        self.parallel, self.ranks, self._wish = parallel, ranks, wish
        self.optimizer_settings, self.samples_per_epoch, self.epochs = settings, samples_per_epoch, epochs
        self.coordinator = Coordinator(parallel, ranks)
        self.notes: list[str] = []
        """Lines for a person on differences from a training on one device."""
        self._bounds = self.coordinator.bounds(samples_per_epoch)
        self._train_s = 0.0

    def advance(self) -> Progress | None:
        """Train until the next exchange, at the end of an epoch at the latest; return None once the training has
        ended."""
        if self.epoch >= self.epochs:
            return None
        started = time.perf_counter()
        self.take_steps(len(self._bounds))
        return self._exchange(time.perf_counter() - started)

    def take_steps(self, most: int) -> None:
        """Take steps until the next exchange or the end of the epoch, `most` at most."""
        if self.step == 0:
            self._train_s = 0.0
            self._begin_epoch()
        self._use(self.optimizer_settings.in_epoch(self.epoch + 1))
        self._begin_steps()
        for start, end in self._bounds[self.step : self.step + most]:
            self._take_step(start, end, self._lr(self.step))
            self.step += 1
            if self.coordinator.due():
                break
        self._wait()

    def _lr(self, step: int) -> float:
        steps, settings = len(self._bounds), self.optimizer_settings.in_epoch(self.epoch + 1)
        return settings.lr_at(self.epoch * steps + step, steps, self.epochs)

    def _use(self, settings: OptimizerSettings) -> None:
        """Take the next steps by these settings; the learning rate comes with each step."""
        return

    def _exchange(self, wall_s: float) -> Progress:
        self._train_s += wall_s
        ended = self.step == len(self._bounds)
        reports, norms = self._report(self._wish() if self.ranks.rank == 0 else "")
        waited_s = self._take_waited() if ended else None
        began = time.perf_counter()
        validation = self._evaluate() if ended and (self.ranks.rank == 0 or self.evaluates_together) else {}
        validate_s = time.perf_counter() - began
        told = self.coordinator.exchange(reports, norms, wall_s)
        lr, step, result = self._lr(self.step - 1), self.step, None
        if ended:
            self.epoch, self.step = self.epoch + 1, 0
            metrics = {"train/loss": told.loss}
            metrics |= {f"validation/{name}": value for name, value in validation.items()}
            result = EpochResult(self.epoch, metrics, self.samples_per_epoch, self._train_s, validate_s, waited_s)
        return Progress(
            epoch=self.epoch + (not ended),
            step=step,
            steps=len(self._bounds),
            lr=lr,
            wall_s=wall_s,
            samples=told.samples,
            rates=told.rates,
            shares=self.coordinator.shares,
            noise=told.noise,
            wish=told.wish,
            result=result,
            diverged=ended and not math.isfinite(told.loss),
        )

    def _take_waited(self) -> float | None:
        """Return the seconds that this process has waited for samples since the last call; None for data in memory."""
        return None

    def _rate(self, rank: int, seconds: Sequence[float]) -> float | None:
        """Return the samples/s of a rank's device alone; None without seconds. seconds: of steps on whole batches."""
        return self.coordinator.shares[rank] / median(seconds) if seconds else None

    def _state(self) -> dict[str, Any]:
        """Return the state of a training within an epoch, beside model, optimizer and random states."""
        return {
            "epoch": self.epoch,
            "step": self.step,
            "global_batch": self.parallel.global_batch,
            "train_s": self._train_s,
            "ratios": self.coordinator.balancer.ratios,
        }

    def _set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from the result of `_state`. Raises ValueError within an epoch of another global batch."""
        batch = state["global_batch"]
        if state["step"] and batch != self.parallel.global_batch:
            raise ValueError(f"trained with batches of {batch}, not of {self.parallel.global_batch}")
        self.epoch, self.step = state["epoch"], state["step"]
        if self.parallel.auto_shares and len(state["ratios"]) == self.ranks.world:
            self.coordinator.balancer.ratios = list(state["ratios"])
        if self.step:
            self._train_s = state["train_s"]

    @abstractmethod
    def _begin_epoch(self) -> None:
        """Set the order of samples and the random numbers; reset the sum of losses."""

    @abstractmethod
    def _begin_steps(self) -> None:
        """Prepare to time steps; the device is idle."""

    @abstractmethod
    def _take_step(self, start: int, end: int, lr: float) -> None:
        """Take one optimizer step of all ranks, on the epoch's samples from `start` to before `end`."""

    @abstractmethod
    def _wait(self) -> None:
        """Wait until the device has finished its work."""

    @abstractmethod
    def _evaluate(self) -> dict[str, float]:
        """Return means over the validation data. Called on rank 0 alone, unless all evaluate together."""

    @abstractmethod
    def _report(self, wish: Wish) -> tuple[list[Report], list[Norm]]:
        """Return this process' reports since the last exchange, by rank, and the steps measured for the noise scale."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write everything needed to go on from here. Rank 0 writes, and all ranks call it."""

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Go on from a folder that `save` wrote. Called before the first `advance`."""

    @abstractmethod
    def load_parameters(self, folder: Path) -> None:
        """Begin with a trial's parameters: a warm start."""

    @abstractmethod
    def close(self) -> None:
        """Free memory. Called once, in any case."""
