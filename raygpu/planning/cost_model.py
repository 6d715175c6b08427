"""Choose how a sweep's trials share the GPUs, from profiles, sweep size and machine limits. Pure.

    ways = options([ProfiledGroup(profile, Size(trials=64, epochs=20, at_once=64), fusable=True)], room, num_gpus=1)

Start-up counts: four short trials must not pay for what only forty repay.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from raygpu.config.sections import Way
from raygpu.planning.gpu_shares import Node
from raygpu.planning.profiles import FALLING, Profile
from raygpu.planning.scaling_laws import Affine
from raygpu.planning.schedule import ARRAY_S, TRIAL_S, WORKER_S

TUNE_S = 3.5
"""Seconds of Tune before a sweep's first trial and after its last."""
DRIVER_S = 0.06
"""Serial driver time per trial, in seconds; bounds trials per second in every way."""
RESERVE = 0.9
"""Share of the free memory that trainings may fill."""
PACKED: tuple[Way, ...] = ("process", "mps", "split")
"""Ways in which each trial is a training of its own, several at once. Nothing runs trials in threads."""


@dataclass(frozen=True, slots=True)
class Size:
    """The amount of training: trials, epochs and trials at once."""

    trials: int
    epochs: float
    """Epochs of a mean trial: some may be stopped early."""
    at_once: int
    """Largest number of trials that may run at the same time, each alone."""
    members: int | None = None
    """Number of trials in one process at most, a mean generation of Optuna's; None for as many as run at once."""
    generations: int = 1
    """Number of times that a search asks for trials where several share a process."""

    def of(self, way: Way) -> int:
        """Return the largest number of trials that may run at the same time in this way."""
        together = way in ("fused", "split")
        return self.members if together and self.members is not None else self.at_once


@dataclass(frozen=True, slots=True)
class ProfiledGroup:
    """The trials of one signature."""

    profile: Profile
    size: Size
    fusable: bool

    @property
    def can_fuse(self) -> bool:
        """Whether the trials are fusable, and were measured as an array."""
        return self.fusable and self.profile.measured("fused")


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """The memory that the trainings on one device may take together."""

    host_gib: float
    device_gib: float | None
    """Free device memory; None for a simulated device."""

    @classmethod
    def of(cls, nodes: Sequence[Node], free_gib: float | None) -> FreeMemory:
        """Return the room on these nodes. free_gib: free memory of the device that has the least; None if simulated."""
        return cls(min(node.memory_gib / node.num_gpus for node in nodes), free_gib)


@dataclass(frozen=True, slots=True)
class Option:
    """One way to run the whole sweep, with its predicted time and memory."""

    way: Way
    """The way of the trials that are not fused."""
    n: int
    """Number of trials at once on a device, of those that are not fused."""
    fused: tuple[bool, ...]
    """Whether each group is trained as arrays."""
    wall_s: float
    gib: float | None
    """Peak memory of a device; of the host if the device is simulated."""
    bound: str
    """The bound that keeps n from being larger."""
    off_s: float = 0.0
    """Error of the time in seconds, from the spread of the measured points."""

    @property
    def is_in_generations(self) -> bool:
        """Whether several trials share a process, so that a search that learns asks for several at once."""
        return any(self.fused) or self.is_split

    @property
    def is_split(self) -> bool:
        """Whether several trials share a process on the logical devices of a device."""
        return self.way == "split" and self.n > 1

    def told(self) -> str:
        """Return the prediction as text for a person."""
        off = f" (± {self.off_s:.0f} s)" if self.off_s >= 0.5 else ""
        return f"{self.name} {self.wall_s:.0f} s{off}" + ("" if self.gib is None else f" ({self.gib:.1f} GiB)")

    def within_noise_of(self, other: Option) -> bool:
        """Return whether the spreads explain the difference of both predictions."""
        return abs(self.wall_s - other.wall_s) <= math.hypot(self.off_s, other.off_s)

    @property
    def name(self) -> str:
        """Name for a person, and key of the predictions in `summary.json`."""
        if all(self.fused):
            return "fused"
        packed = "one at a time" if self.n == 1 else f"{self.n} at once in {PLACES[self.way]}"
        return f"fused in part, the others {packed}" if any(self.fused) else packed


PLACES: Mapping[Way, str] = {
    "process": "processes",
    "mps": "processes under MPS",
    "split": "one process, the device split",
}


def options(
    groups: Sequence[ProfiledGroup],
    room: FreeMemory,
    num_gpus: int = 1,
    ways: Iterable[Way] = PACKED,
    asked: int | None = None,
) -> list[Option]:
    """Return the best option of each kind, the fastest first: one at a time, packed, split, all fused, fused in part.

    ways: the packed ways that may be used. asked: the only number of trials at once on a device that may be used.
    """
    largest = max(groups, key=lambda group: group.size.trials)
    candidates: list[Option] = []
    nothing = tuple(False for _ in groups)
    everything = tuple(group.can_fuse for group in groups)
    packings: list[tuple[Way, int, str]] = [("process", asked or 1, "asked for")]
    if asked is None:
        packings = list(_packings(largest, room, num_gpus, ways))
    for way, n, bound in packings:
        fast = tuple(
            group.can_fuse and _fused_s(group, room, num_gpus) < _packed_s(group, way, n, num_gpus) for group in groups
        )
        for fused in dict.fromkeys((nothing, everything, fast)):
            candidates.append(_option(groups, way, n, bound, fused, room, num_gpus))
    best: dict[tuple[bool, bool, bool, str], Option] = {}
    for option in sorted(candidates, key=lambda option: option.wall_s):
        kind = (
            option.is_split,
            all(option.fused),
            any(option.fused),
            "" if all(option.fused) or option.n > 1 else "alone",
        )
        best.setdefault(kind, option)
    return list(best.values())


def _packings(
    group: ProfiledGroup, room: FreeMemory, num_gpus: int, ways: Iterable[Way]
) -> Iterator[tuple[Way, int, str]]:
    """Yield each way at each number of trainings that was measured and has room."""
    for way in ways:
        most, bound = at_once(group, way, room, num_gpus)
        numbers = {min(p.n, most) for p in group.profile.of(way) if p.samples_per_s} | (
            {1} if way == "process" else set()
        )
        yield from ((way, n, bound) for n in sorted(numbers))


def at_once(group: ProfiledGroup, way: Way, room: FreeMemory, num_gpus: int = 1) -> tuple[int, str]:
    """Return the largest number of trainings at once on a device in this way, and the limit that binds, as text."""
    curve, end = gaining(group.profile, way)
    trials_at_once = group.size.of(way)
    bounds = {end: curve, f"{trials_at_once} trials at once": math.ceil(trials_at_once / num_gpus)}
    bounds |= _memory_bounds(group.profile, way, room)
    bound, n = min(bounds.items(), key=lambda item: item[1])
    return max(1, n), bound


def most_that_fit(profile: Profile, way: Way, room: FreeMemory) -> float:
    """Return the largest number of trainings that memory holds, 1 at least; infinite where memory was not measured."""
    return max(1, min(_memory_bounds(profile, way, room).values(), default=math.inf))


def _memory_bounds(profile: Profile, way: Way, room: FreeMemory) -> dict[str, int]:
    """Return the number of trainings that each memory holds, by a line with the figures."""
    bounds = {}
    for field, free_gib in (("host_gib", room.host_gib), ("device_gib", room.device_gib)):
        line = profile.memory(way, field)  # type: ignore[arg-type] # two names that are literals
        if line is not None and line.each > 0 and free_gib is not None:
            text = f"{field[:-4]} memory: {line.each:.2f} GiB each, {free_gib:.1f} GiB free"
            bounds[text] = trainings_that_fit(line, free_gib)
    return bounds


def gaining(profile: Profile, way: Way) -> tuple[int, str]:
    """Return the smallest number at once whose throughput no larger one is shown to exceed, and what ends there."""
    best = profile.best([way])
    curve = best.n if best is not None else 1
    highest = max((p.n for p in profile.of(way)), default=1)
    return curve, f"throughput peaks at {curve}" if curve < highest or curve == 1 else f"measured up to {curve}"


def trainings_that_fit(line: Affine, free_gib: float, *, running: bool = False) -> int:
    """Return the number of trainings that the free memory holds. line: GiB of n trainings, each above 0.

    running: whether some run already, which have taken the fixed part.
    """
    return math.floor((RESERVE * free_gib - (0.0 if running else line.fixed)) / line.each)


def _option(
    groups: Sequence[ProfiledGroup],
    way: Way,
    n: int,
    bound: str,
    fused: tuple[bool, ...],
    room: FreeMemory,
    num_gpus: int,
) -> Option:
    wall_s, off_s = TUNE_S, 0.0
    gibs: list[float | None] = []
    if not all(fused):
        wall_s += max(_start_s(group.profile, _known(group.profile, way), n) for group in groups)
    if any(fused):
        wall_s += max(_start_s(group.profile, "fused", 1) for group in groups)
    if any(fused) and not all(fused):  # workers of one share end before those of the other start
        wall_s += 2 * WORKER_S * (max(group.size.generations for group in groups) - 1)
    for group, array in zip(groups, fused, strict=True):
        group_s = _fused_s(group, room, num_gpus) if array else _packed_s(group, way, n, num_gpus)
        own_way: Way = "fused" if array else _known(group.profile, way)
        number = _members(group, room, num_gpus) if array else n
        wall_s += group_s
        off_s += group_s * _off(group.profile, own_way, number)
        gibs.append(_gib(group.profile, own_way, number))
    peaks_gib = [gib for gib in gibs if gib is not None]
    return Option(way, n, fused, wall_s, max(peaks_gib, default=None), bound, off_s)


def _known(profile: Profile, way: Way) -> Way:
    """Return the way by which a profile predicts a packed way: itself, or `process` where it was not measured."""
    return way if profile.measured(way) else "process"


def _off(profile: Profile, way: Way, n: int) -> float:
    """Return the relative error of the speed of n at once: half the spread of the measured number next to it."""
    points = [p for p in profile.of(way) if p.gain is not None]
    if not points:
        return 0.0
    near = min(points, key=lambda p: abs(p.n - n))
    return near.spread.width**0.5 - 1


def _packed_s(group: ProfiledGroup, way: Way, n: int, num_gpus: int) -> float:
    """Return the seconds of waves of trials, n on each device; the last wave may be smaller, and is then faster."""
    profile, size = group.profile, group.size
    way = _known(profile, way)
    each = size.epochs * (profile.num_train or 1) * (1 + _evaluation_share(profile, way))
    full, rest = divmod(size.trials, n * num_gpus)
    last = math.ceil(rest / num_gpus)
    seconds = full * n * each / _rate(profile, way, n)
    if last:
        seconds += last * each / _rate(profile, way, last)
    between_s = TRIAL_S / (n * num_gpus)
    return max(seconds + between_s * size.trials, DRIVER_S * size.trials)


def _fused_s(group: ProfiledGroup, room: FreeMemory, num_gpus: int) -> float:
    """Return the seconds of one array per device, or of as many in turn as a generation or the memory asks for."""
    profile, size = group.profile, group.size
    members = _members(group, room, num_gpus)
    waves = math.ceil(size.trials / num_gpus / members)
    work = waves * members * size.epochs * (profile.num_train or 1) * (1 + _evaluation_share(profile, "fused"))
    eager = {p.n: p.samples_per_s for p in profile.of("fused") if p.samples_per_s}
    widths = {n for n in eager if n <= members} | {min(members, max(eager))}
    eager_s = work / max(_rate(profile, "fused", n) for n in widths) + ARRAY_S * waves
    seconds = eager_s
    for point in profile.points:
        if point.compiled and point.doubt is None and point.samples_per_s and point.n in eager:
            # Compiling multiplies the speed by about as much at other widths; the array measures whether it repays.
            speedup = point.samples_per_s / eager[point.n]
            seconds = min(seconds, (point.start_s or 0.0) + eager_s / speedup)
    return max(seconds, DRIVER_S * size.trials)


def _members(group: ProfiledGroup, room: FreeMemory, num_gpus: int) -> int:
    """Return the members of an array: all trials of a device, if they may run at once and memory holds them."""
    most = math.ceil(min(group.size.trials, group.size.of("fused")) / num_gpus)
    on_device = room.device_gib is not None
    line = group.profile.memory("fused", "device_gib" if on_device else "host_gib")
    if line is None or line.each <= 0:
        return most
    free_gib = room.device_gib if room.device_gib is not None else room.host_gib
    return max(1, min(most, trainings_that_fit(line, free_gib)))


def _rate(profile: Profile, way: Way, n: int) -> float:
    """Return the samples/s in all, measured or by the fitted curve; one training alone is a process in every packed
    way."""
    if n == 1 and way != "fused":
        way = "process"
    rate = profile.rate(way, n)
    assert rate is not None
    return rate


def _evaluation_share(profile: Profile, way: Way) -> float:
    """Return the seconds of evaluation over those of training, per epoch: of one training, or at an array's best
    width."""
    points = [p for p in profile.of(way) if p.evaluation_s is not None and p.samples_per_s]
    if not points or profile.num_train is None:
        return 0.0
    if way != "fused":
        point, count = points[0], 1
    else:
        highest = max(p.samples_per_s or 0.0 for p in points)
        point = next(p for p in points if (p.samples_per_s or 0.0) >= FALLING * highest)
        count = point.n
    rate = (point.samples_per_s or 0.0) / (point.n if way != "fused" else 1)
    return (point.evaluation_s or 0.0) * rate / (profile.num_train * count)


def _start_s(profile: Profile, way: Way, n: int) -> float:
    """Return the seconds to start the processes of a way."""
    times = {p.n: p.start_s for p in profile.of(way) if p.start_s is not None}
    if way in ("process", "mps"):
        return max((seconds for number, seconds in times.items() if number <= n), default=WORKER_S)
    return max(times.values(), default=WORKER_S)


def _gib(profile: Profile, way: Way, n: int) -> float | None:
    line = profile.memory(way, "device_gib") or profile.memory(way, "host_gib")
    return line.at(n) if line is not None else None
