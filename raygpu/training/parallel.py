"""What data-parallel trainings of every framework share: the split of a batch, and what ranks tell each other.

    conductor = Conductor(settings, ranks)
    conductor.share(4096)           # rows of a batch of 4096 samples that are this rank's
    if conductor.due(step):
        progress = conductor.exchange(report)

Every rank decides by itself and alike, from the same reports of all ranks, so no rank has to be asked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from raygpu.batching import Balance, NoiseEstimator, NoiseScale, batch_bounds, parts
from raygpu.progress import Progress, Wish

EXCHANGE_S = 1.0
"""Between two exchanges, about."""
FIRST = (3, 6, 12, 24)
"""Steps before which ranks exchange whatever the time: a split by speed has settled then."""
LONGEST = 1000
"""Steps between two exchanges, at most."""
NOISE_EVERY = 8
"""Steps of which one is measured for the gradient noise scale."""


class Ranks(Protocol):
    """This process among those that train together."""

    rank: int
    world: int

    def gather(self, value: Any) -> list[Any]:
        """Each rank's value, by rank; all ranks call it, and each waits for all."""


class OneRank:
    """A training on one device."""

    rank, world = 0, 1

    def gather(self, value: Any) -> list[Any]:
        return [value]


@dataclass(frozen=True, slots=True)
class Parallel:
    """How a training is spread over devices."""

    global_batch: int
    """Samples of an optimizer step, on all devices together."""
    accumulate: int = 1
    """Parts in which a device takes its share of them."""
    ratios: tuple[float, ...] = ()
    """Of the devices' shares; empty for equal ones."""
    balance: bool = False
    """Whether the devices' speeds are measured, and the shares follow them."""
    compile: bool = False
    lr_factor: float = 1.0
    """By which the learning rate is scaled."""
    warmup_epochs: float | None = None
    """In place of the hyper-parameter's."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a rank tells the others of its steps since the last exchange."""

    samples: int
    """Of its own, since then."""
    rate: float | None
    """Samples/s of its device alone, without waiting for others: the median of whole steps; None where none was."""
    most: float
    """Samples of a global batch whose share fits this rank's memory."""
    loss_sum: float
    """Of its samples of this epoch."""
    squares: tuple[float, ...] = ()
    """|g|^2 of its part of the gradient, at each measured step."""
    wish: Wish = ""


class ParallelTraining(Protocol):
    """One rank's part of a training under way; all ranks make the same calls."""

    epoch: int
    """The last epoch that has ended."""
    notes: list[str]
    """For a person: what differs from a training on one device."""

    def advance(self) -> Progress | None:
        """Train until the next exchange, which the end of an epoch is too; None when the training has ended."""

    def save(self, folder: Path) -> None:
        """Write all that is needed to go on from here. Rank 0 writes, and all ranks call it."""

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote. Called before the first `advance`."""

    def load_parameters(self, folder: Path) -> None:
        """Begin with a trial's parameters: a warm start."""

    def close(self) -> None:
        """Free memory. Called once, always."""


@dataclass(slots=True)
class Conductor:
    """Keeps the ranks in step: when they exchange, and how a batch is split."""

    parallel: Parallel
    ranks: Ranks
    noise: NoiseEstimator = field(default_factory=NoiseEstimator)
    balance: Balance = field(init=False)
    next_step: int = FIRST[0]
    """Of this process, at which the next exchange is."""
    taken: int = 0
    """Steps of this process."""

    def __post_init__(self) -> None:
        if len(self.parallel.ratios) not in (0, self.ranks.world):
            raise ValueError(f"{len(self.parallel.ratios)} ratios for {self.ranks.world} ranks")
        self.balance = Balance(list(self.parallel.ratios or [1.0] * self.ranks.world))

    @property
    def shares(self) -> tuple[int, ...]:
        """Of a whole batch, by rank."""
        return tuple(self.balance.split(self.parallel.global_batch))

    def bounds(self, num_samples: int) -> list[tuple[int, int]]:
        """Start and end of each global batch of an epoch."""
        least = max(2, self.ranks.world)
        return list(batch_bounds(num_samples, self.parallel.global_batch, least))

    def part_sizes(self, start: int, end: int) -> tuple[slice, list[int], list[int]]:
        """Of a global batch: this rank's samples, the sizes of the parts that it takes them in, and all ranks' shares.

        All ranks take as many parts: a layer may wait for the others in each.
        """
        shares = self.balance.split(end - start)
        own = shares[self.ranks.rank]
        first = start + sum(shares[: self.ranks.rank])
        return slice(first, first + own), parts(own, min(self.parallel.accumulate, *shares)), shares

    def due(self) -> bool:
        """Counts a step; whether an exchange follows it."""
        self.taken += 1
        return self.taken >= self.next_step

    @property
    def measures_noise(self) -> bool:
        """Whether the coming step is one of those."""
        return self.ranks.world > 1 and self.taken % NOISE_EVERY == 0

    def exchange(self, report: Report, wholes: Sequence[float], sizes: Sequence[Sequence[int]], wall_s: float) -> Told:
        """Tell the others, and decide alike what comes next.

        wholes, sizes: of each step measured for the noise scale, |g|^2 of the whole gradient and the ranks' shares.
        wall_s: since the last exchange.
        """
        told: list[tuple[Report, float]] = self.ranks.gather((report, wall_s))
        reports = [report for report, _ in told]
        for index, whole in enumerate(wholes):
            self.noise.add(sizes[index], [r.squares[index] for r in reports], whole)
        rates = tuple(r.rate for r in reports)
        if self.parallel.balance and all(rates):
            self.balance.most = [r.most for r in reports] if any(r.most < math.inf for r in reports) else []
            self.balance.tell(self.shares, [rate or 0.0 for rate in rates])
        self._plan_next(told[0][1])
        return Told(
            tuple(r.samples for r in reports),
            rates,
            self.noise.scale(),
            sum(r.loss_sum for r in reports),
            reports[0].wish,
        )

    def _plan_next(self, wall_s: float) -> None:
        """wall_s: rank 0's, of the steps since the last exchange."""
        soon = next((number for number in FIRST if number > self.taken), None)
        steps = max(1, self.taken - self._last)
        self._last = self.taken
        if soon is not None:
            self.next_step = soon
            return
        self.next_step = self.taken + max(1, min(LONGEST, round(EXCHANGE_S * steps / max(wall_s, 1e-9))))

    _last: int = 0


@dataclass(frozen=True, slots=True)
class Told:
    """What an exchange came to, on every rank the same."""

    samples: tuple[int, ...]
    rates: tuple[float | None, ...]
    noise: NoiseScale | None
    loss_sum: float
    wish: Wish
