"""Measured throughput and memory of one training on one device type, in every way to share it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Literal

from raygpu.config.sections import WAYS, Way
from raygpu.planning.confidence import Interval
from raygpu.planning.scaling_laws import Affine, Usl

FILLED = 1.1
"""Gain over one training that sharing has to reach: below it, one training fills the device."""
FALLING = 0.97
"""Ratio of two throughputs above which they count as equal: gains under 3 % count as none."""

NOT_COMPILED = "step not compiled"
"""Part of the note of a way that was measured without its compiled step."""
NOT_TRIED = "at once not tried"
"""Part of the note of a number that a measurement left out, for want of time or of free memory."""
BEATEN = "packed:"
"""Prefix of the note that no number of processes can be as fast as the array of this measurement."""
NOT_MEASURED = "not measured"
"""Part of the note of a way that a measurement left out."""
NOT_STARTED = "its start failed"
"""Part of the note that MPS was tried and did not run: for good, or because the machine was busy."""
ROOMIER = 1.1
"""Ratio of free memory to that of a measurement in which memory ended, from which more trainings may fit."""
STARTS_AGAIN = timedelta(days=1)
"""Age of a measurement from which a start of MPS that failed in it may be tried again."""
MEASURABLE = 0.02
"""Share of a step's time below which a fitted cost cannot be told from zero, however small the spread."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The training that was measured, and the device it was measured on."""

    source: str
    """The experiment's name, or a command."""
    hyperparameters: dict[str, str]
    """The hyper-parameters that shape the program, as text."""
    data: str
    """Shapes and dtypes of the training data; empty if raygpu does not load them."""
    precision: str
    device: str
    """The GPU's name, or the processor's where one is simulated."""
    device_gib: float | None
    num_cpus: float
    versions: dict[str, str] = field(compare=False)
    """Versions of raygpu, the framework, the driver and the experiment's own code."""

    @property
    def file_name(self) -> str:
        """File name of the subject's profile, the same for all versions."""
        identity = {name: value for name, value in asdict(self).items() if name != "versions"}
        identity["num_cpus"] = float(self.num_cpus)  # a machine counts them in whole numbers, Ray in floats
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16] + ".json"

    def same_versions(self, other: Subject) -> bool:
        """Return whether both have the same code and versions; a driver's counts where both know one, as a machine
        without a GPU does not."""
        unknown = {"driver"} - (self.versions.keys() & other.versions.keys())
        known, others = (
            {name: version for name, version in each.versions.items() if name not in unknown} for each in (self, other)
        )
        return known == others

    def same_training(self, other: Subject) -> bool:
        """Return whether both are the same training, of the same code, on whichever device."""
        return self.versions.get("code") == other.versions.get("code") and self.same_shape(other)

    def same_shape(self, other: Subject) -> bool:
        """Return whether both are one experiment with the same hyper-parameters and data, whatever its code was."""
        return (self.source, self.hyperparameters, self.data, self.precision) == (
            other.source,
            other.hyperparameters,
            other.data,
            other.precision,
        )


@dataclass(frozen=True, slots=True)
class Point:
    """The measurement of `n` trainings at once, in one way."""

    way: Way
    n: int
    samples_per_s: float | None = None
    """Samples/s of all together: the gain times the throughput of one training alone, within the range of its own
    windows; reports/s if raygpu does not run the loop; None if memory ended."""
    gain: float | None = None
    """Median throughput over that of one training alone in the same rounds."""
    gain_low: float | None = None
    gain_high: float | None = None
    """Bounds of the gain with 95 % confidence; None for a single round."""
    compiled: bool = False
    rounds: tuple[float, ...] = ()
    """Samples/s of each round's window."""
    references: tuple[float, ...] = ()
    """Samples/s of one training alone, in the same rounds."""
    doubt: str | None = None
    """Reason not to use the point: a contradiction that remained after it was measured again."""
    threads: int = 1
    """CPU threads of each training, or of an array."""
    evaluation_s: float | None = None
    """Seconds of an evaluation of one training, or of all members of an array."""
    start_s: float | None = None
    """Seconds from asking for all n processes to their first steps, earlier ones for fewer at once included."""
    host_gib: float | None = None
    """Host memory of each training, without memory shared with others."""
    device_gib: float | None = None
    """Device memory of each training, the context of its process included."""
    used_gib: float | None = None
    """Device memory in use in all, by any process."""
    free_gib: float | None = None
    """Device memory that was free before the measurement, where memory ended."""
    util_pct: float | None = None
    sm_util_pct: float | None = None
    sm_occupancy_pct: float | None = None
    dram_bandwidth_pct: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    fault: str | None = None
    """Reason why there is no throughput."""

    @property
    def label(self) -> str:
        """Name of the way for tables, with the note of a compiled step."""
        return f"{self.way}, compiled" if self.compiled else self.way

    @property
    def spread(self) -> Interval:
        """The gain with its confidence interval; without width if it was measured once."""
        assert self.gain is not None
        if self.gain_low is None or self.gain_high is None:
            return Interval.exactly(self.gain)
        return Interval(self.gain, self.gain_low, self.gain_high)


@dataclass(frozen=True, slots=True)
class Profile:
    """The measured points of a subject."""

    subject: Subject
    num_train: int | None
    """Training samples of an epoch; None if raygpu does not run the loop, and reports are counted."""
    points: tuple[Point, ...]
    notes: tuple[str, ...] = ()
    """Lines that say why a way was not measured, or where it ended."""
    measured_at: str = ""
    """Date and time, ISO 8601, UTC."""
    synthetic: bool = False
    """Whether the data was made up."""
    ended_s: dict[Way, float] = field(default_factory=dict)
    """Seconds that a sweep's probe could take, by each way whose measurement they ended."""

    def as_dict(self) -> dict[str, Any]:
        """Return the profile as JSON can hold it."""
        return asdict(self)

    def in_epochs_of(self, samples: int | None) -> Profile:
        """Return the profile for epochs of so many training samples, which are no part of a measurement; None leaves
        them."""
        return self if samples is None else replace(self, num_train=samples)

    @property
    def unit(self) -> str:
        """Unit of the throughput, `samples` or `reports`, per second."""
        return "reports" if self.num_train is None else "samples"

    @property
    def batch_size(self) -> int | None:
        """Samples of a step; None if unknown."""
        text = self.subject.hyperparameters.get("batch_size", "")
        return min(int(text), self.num_train or int(text)) if text.isdigit() else None

    def of(self, way: Way) -> list[Point]:
        """Return the points of one way, sorted by n, without compiled ones and ones in doubt."""
        points = (p for p in self.points if p.way == way and not p.compiled and p.doubt is None)
        return sorted(points, key=lambda p: p.n)

    def measured(self, way: Way) -> bool:
        """Return whether a way has a throughput."""
        return any(p.samples_per_s for p in self.of(way))

    @property
    def is_of_one(self) -> bool:
        """Whether the profile has the speed of one training alone and no more."""
        return all((p.way, p.n) == ("process", 1) for p in self.points)

    @property
    def ways(self) -> list[Way]:
        """Measured ways, in the order of `WAYS`."""
        return [way for way in WAYS if any(p.way == way for p in self.points)]

    def best(self, ways: Sequence[Way] = WAYS) -> Point | None:
        """Return the point with the fewest trainings whose throughput is within noise of the highest of these ways.

        None without a measured gain.
        """
        highest = self.highest(ways)
        if highest is None:
            return None
        close = [p for p in self._sound(ways) if not _exceeds(highest, p)]
        least = min(p.n for p in close)
        return max((p for p in close if p.n == least), key=lambda p: p.spread.middle)

    def highest(self, ways: Sequence[Way] = WAYS) -> Point | None:
        """Return the point with the highest median throughput of these ways, whatever its spread; None without any."""
        return max(self._sound(ways), key=lambda p: p.spread.middle, default=None)

    def _sound(self, ways: Sequence[Way]) -> list[Point]:
        return [p for p in self.points if p.way in ways and p.gain is not None and p.doubt is None]

    def without_threads_that_lose(self) -> Profile:
        """Return the profile without threads of one process if another way is as fast, with a note of their gain."""
        threads = self.best(["threads"])
        others = self.best([way for way in WAYS if way != "threads"])
        if threads is None or others is None or (threads.gain or 0.0) > (others.gain or 0.0):
            return self
        note = (
            f"threads: dropped, for {threads.n} at once reached {threads.gain:.2f}x the throughput of one, and"
            f" {others.label}, {others.n} at once, {others.gain:.2f}x"
        )
        points = tuple(p for p in self.points if p.way != "threads")
        return replace(self, points=points, notes=(*self.notes, note))

    def over(self, earlier: Profile) -> Profile:
        """Add the points and notes of an earlier profile that were not measured again; earlier failures are left
        out."""
        keys = {(p.way, p.n, p.compiled) for p in self.points}
        points = [p for p in earlier.points if (p.way, p.n, p.compiled) not in keys and p.fault is None]
        ways = {p.way for p in self.points}
        notes = [note for note in earlier.notes if note.partition(":")[0] not in ways]
        ended_s = {way: seconds for way, seconds in earlier.ended_s.items() if way not in ways}
        return replace(
            self,
            subject=replace(self.subject, versions=earlier.subject.versions | self.subject.versions),
            points=(*self.points, *points),
            notes=tuple(dict.fromkeys([*self.notes, *notes])),
            ended_s=ended_s | self.ended_s,
            synthetic=self.synthetic or (earlier.synthetic and bool(points)),
        )

    def lasting(self) -> Profile:
        """Return what later measurements may trust: no points in doubt, and no notes of this measurement's moment."""
        points = tuple(p for p in self.points if p.doubt is None)
        return replace(self, points=points, notes=tuple(note for note in self.notes if not _passes(note)))

    def as_of(self, now: datetime) -> Profile:
        """Return what a profile that was measured earlier says now: a failed start of MPS counts for `STARTS_AGAIN`."""
        if not any(NOT_STARTED in note for note in self.notes) or now - _moment(self.measured_at) < STARTS_AGAIN:
            return self
        return replace(self, notes=tuple(note for note in self.notes if NOT_STARTED not in note))

    def with_free(self, free_gib: float | None) -> Profile:
        """Return what the profile says where so much device memory is free: what ended may fit now."""
        if free_gib is None:
            return self
        return replace(self, points=tuple(p for p in self.points if (p.free_gib or math.inf) * ROOMIER > free_gib))

    def tells_of(self, way: Way, n: float) -> bool:
        """Return whether a way needs no further measurement for n trainings at once: n was measured, more stopped
        gaining or failed before, or a note says why it was not measured."""
        points = self.of(way)
        if any(note.startswith(f"{way}:") and NOT_COMPILED not in note for note in self.notes):
            return True
        if not points or points[-1].n >= n or points[-1].fault is not None:
            return bool(points)
        return not rises(points) or (points[-1].gain or 0.0) < max(p.gain or 0.0 for p in points)

    def law(self, way: Way) -> Usl | None:
        """Fit the throughput of a way by the number of trainings; None without points. For ways other than fused."""
        rates = {p.n: p.samples_per_s for p in self.of(way) if p.samples_per_s}
        return Usl.fit(rates) if rates else None

    def step(self) -> Affine | None:
        """Fit the seconds in which a fused array trains one sample of each member, by its width; None without
        points."""
        seconds = {p.n: p.n / p.samples_per_s for p in self.of("fused") if p.samples_per_s}
        return Affine.fit(seconds) if seconds else None

    def measurable(self, cost_s: float, width: int) -> bool:
        """Return whether `cost_s`, a part of the time of a fused array of this measured width, exceeds the spread."""
        step = self.step()
        points = [p for p in self.of("fused") if p.n == width and p.gain is not None]
        if step is None or not points:
            return False
        spread = max(p.spread.width for p in points) ** 0.5 - 1
        return cost_s > max(MEASURABLE, spread) * step.at(width)

    def rate(self, way: Way, n: int) -> float | None:
        """Return the samples/s of n trainings together: as measured, interpolated between two points, else by the
        fitted curve.

        The time of n trainings is linear between two measured numbers. An array wider than any that was measured is
        taken to be no faster if a member's own cost is not measurable: without it, speed would have no bound.
        """
        rates = {p.n: p.samples_per_s for p in self.of(way) if p.samples_per_s}
        if n in rates:
            return rates[n]
        times = sorted((number, number / rate) for number, rate in rates.items())
        for (low, low_s), (high, high_s) in pairwise(times):
            if low < n < high:
                return n / (low_s + (high_s - low_s) * (n - low) / (high - low))
        if way == "fused":
            step = self.step()
            if step is not None and n > max(rates) and not self.measurable(step.each * max(rates), max(rates)):
                return max(rates.values())
            return n / step.at(n) if step is not None else None
        law = self.law(way)
        return law.at(n) if law is not None else None

    def memory(self, way: Way, memory: Literal["host_gib", "device_gib"]) -> Affine | None:
        """Return the total GiB of n trainings, as a line over n; None if it was not measured."""
        totals_gib = {p.n: p.n * gib for p in self.of(way) if (gib := getattr(p, memory))}
        return Affine.fit(totals_gib) if totals_gib else None

    def time_per_training_s(self, point: Point, epochs: int) -> float | None:
        """Return the wall time of `epochs` epochs of all trainings at once, over their number; without evaluation."""
        if point.samples_per_s is None:
            return None
        return epochs * (self.num_train or 1) / point.samples_per_s


def _passes(note: str) -> bool:
    """Return whether the reason in a note may not hold for the next measurement of this training on this device.

    Whether MPS can be tried is asked before each measurement, so that only a failed start has to be known.
    """
    untried = note.startswith("mps:") and NOT_MEASURED in note and NOT_STARTED not in note
    return untried or NOT_TRIED in note or note.startswith(BEATEN)


def _moment(text: str) -> datetime:
    """Return a date and time from a profile; the earliest of all where it has none."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)


def _exceeds(point: Point, other: Point) -> bool:
    """Return whether a point is proven faster than another: by more than FALLING, and beyond both spreads."""
    ratio = point.spread.over(other.spread)
    return ratio.middle > 1 / FALLING and ratio.low > 1


def rises(points: Sequence[Point]) -> bool:
    """Return whether more trainings at once may still gain: none failed, and one of the last two numbers gained."""
    if any(p.fault is not None for p in points):
        return False
    gains = [p.gain or 0.0 for p in sorted(points, key=lambda p: p.n) if p.doubt is None]
    if len(gains) < 3:
        return True
    return max(gains[-2:]) > max(gains[:-2]) / FALLING
