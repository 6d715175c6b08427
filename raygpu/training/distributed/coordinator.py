"""The exchange between the ranks of a training: its moments, and the shares of a batch that follow from reports.

Every rank decides by itself and alike, from the same reports of all ranks, so no rank has to be asked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from raygpu.planning.batch_shares import ShareBalancer, parts, with_least
from raygpu.planning.batches import batch_bounds
from raygpu.planning.noise_scale import NoiseEstimator, NoiseScale
from raygpu.records.training_progress import ControlRequest
from raygpu.training.distributed.ranks import ParallelSettings, Ranks

EXCHANGE_S = 1.0
"""Approximate seconds between two exchanges."""
FIRST = (3, 6, 12, 24)
"""Steps of the first exchanges, whatever the time: a split by speed has settled after them."""
LONGEST = 1000
"""Largest number of steps between two exchanges."""
NOISE_EVERY = 8
"""Interval, in steps, of measurements for the gradient noise scale."""
LARGER_PARTS = (
    "a device takes up to {taken} samples at once, where accumulate or micro_batch_size asks for parts of {asked}:"
    " {cause}"
)
EQUAL_PARTS = (
    "all devices take a batch in as many parts, here {number}: the smallest share is {share}, and a part has {least} at"
    " least"
)
LEAST = "the model needs {least} samples in each part"


@dataclass(frozen=True, slots=True)
class RankReport:
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
    request: ControlRequest = ""


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
    equal_parts: bool = True
    """Whether all ranks take a batch in as many parts, since layers such as SyncBatchNorm communicate in each."""

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
        return with_least(self.balancer.split(total), self.parallel.least)

    def bounds(self, num_samples: int) -> list[tuple[int, int]]:
        """Return the start and end of each global batch of an epoch."""
        least = max(2, self.parallel.least * self.ranks.world)
        return list(batch_bounds(num_samples, self.parallel.global_batch, least))

    def local_batches(self, start: int, end: int) -> list[LocalBatch]:
        """Cut a global batch into a local batch for each rank, all of the same number of parts.

        Where a share is too small for so many, all ranks take fewer, unless parts of another rank would then be larger
        than `micro_batch_size` and `equal_parts` is not set: then that rank alone takes fewer.
        """
        shares = self._split(end - start)
        wanted = self._wanted_parts(shares)
        numbers = [min(wanted, share // self.parallel.least) for share in shares]
        if self.equal_parts or math.ceil(max(shares) / min(numbers)) <= self._most_samples():
            numbers = [min(numbers)] * len(numbers)
        firsts = [start + sum(shares[:rank]) for rank in range(len(shares))]
        cut = zip(firsts, shares, numbers, strict=True)
        return [LocalBatch(first, parts(own, number)) for first, own, number in cut]

    def _most_samples(self) -> float:
        """Return the number of samples that a device takes at once at most, by `micro_batch_size`."""
        settings = self.parallel.optimizer_settings
        micro_batch_size = settings.micro_batch_size if settings is not None else None
        return math.inf if micro_batch_size is None else micro_batch_size

    def _wanted_parts(self, shares: Sequence[int]) -> int:
        """Return the number of parts that a batch's shares shall be taken in."""
        settings = self.parallel.optimizer_settings
        if settings is None:
            return self.parallel.accumulate
        # micro_batch_size holds for the share of the fastest device too
        return max(self.parallel.accumulate, len(settings.parts_of(max(shares))))

    def parts_line(self, bounds: Sequence[tuple[int, int]]) -> str | None:
        """Return a line if a device takes more samples at once than `accumulate` and `micro_batch_size` ask for; None
        otherwise. bounds: of the batches of an epoch."""
        asked, largest = 0, [LocalBatch(0, [0])]
        for start, end in (bounds[0], bounds[-1]):
            shares = self._split(end - start)
            asked = max(asked, math.ceil(max(shares) / self._wanted_parts(shares)))
            largest = max(largest, self.local_batches(start, end), key=_largest_part)
        if _largest_part(largest) <= asked:
            return None
        cause = EQUAL_PARTS if self.equal_parts and self.ranks.world > 1 else LEAST
        number, share = len(largest[0].sizes), min(each.samples for each in largest)
        cause = cause.format(number=number, share=share, least=self.parallel.least)
        return LARGER_PARTS.format(taken=_largest_part(largest), asked=asked, cause=cause)

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

    def exchange(
        self, own: Sequence[RankReport], norms: Sequence[Norm], wall_s: float, checksum: int | None = None
    ) -> ExchangeResult:
        """Exchange reports with the other ranks, and decide alike on the next split and the next exchange.

        own: reports of this process' ranks. norms: of each step measured for the noise scale. wall_s: seconds since the
        last exchange. checksum: of this process' copy of the model at the end of an epoch.
        """
        contributions: list[tuple[RankReport, float, int | None]]
        contributions = self.ranks.gather([(report, wall_s, checksum) for report in own])
        reports = [report for report, _, _ in contributions]
        for index, norm in enumerate(norms):
            self.noise.add(norm.shares, [r.squares[index] for r in reports], norm.whole)
        rates = tuple(r.rate for r in reports)
        if self.parallel.auto_shares and all(rates):
            self.balancer.most = [r.most for r in reports]
            self.balancer.tell(self.shares, [rate or 0.0 for rate in rates])
        self._plan_next(contributions[0][1])
        return ExchangeResult(
            tuple(r.samples for r in reports),
            rates,
            self.noise.scale(),
            sum(r.loss_sum for r in reports) / (sum(r.loss_weight for r in reports) or 1.0),
            reports[0].request,
            len({checksum for _, _, checksum in contributions}) == 1,
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


def _largest_part(local_batches: Sequence[LocalBatch]) -> int:
    return max(max(each.sizes) for each in local_batches)


@dataclass(frozen=True, slots=True)
class ExchangeResult:
    """Result of an exchange, the same on every rank."""

    samples: tuple[int, ...]
    rates: tuple[float | None, ...]
    noise: NoiseScale | None
    loss: float
    """Loss of the epoch so far."""
    request: ControlRequest
    are_alike: bool
    """Whether all ranks have the same model, as far as checksums tell."""
