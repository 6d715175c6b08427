"""Placements of a model's parts on several devices: their names, checked, and what measurements say about them. Pure.

require_possible({"towers": {"user_tower": 0, "item_tower": 1}}, known=names, num_devices=2)
comparison = compare([one, towers, alternating])      # the fastest, and its speed-up over one device
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from raygpu.config.sections import ONE
from raygpu.errors import BadInput
from raygpu.planning.confidence import Interval, ratio

Placements = Mapping[str, Mapping[str, int]]
"""Device of each part, by placement."""

SMALLEST_LOSS = 1e-12
"""Loss below which a difference is no longer relative."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of a framework, such as `aten::mm`, in one optimizer step."""

    name: str
    seconds: float
    """Its own time on the devices, without that of operations that it calls."""


@dataclass(frozen=True, slots=True)
class StepProfile:
    """The mean optimizer step under the framework's profiler."""

    device_s: float
    """Seconds in which devices worked, added up over the devices."""
    copy_s: float
    """Seconds of `device_s` in copies between devices."""
    num_copies: float
    """Copies between devices, forward and backward."""
    copied_bytes: float
    operations: tuple[Operation, ...]
    """The costliest first; copies between devices are one of them."""

    @property
    def copy_share(self) -> float:
        """Share of the devices' time in copies between devices, 0 to 1."""
        return self.copy_s / self.device_s if self.device_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class PlacementTurn:
    """One turn of a placement: the model made anew, warmed up, and trained for an epoch."""

    epoch_s: float
    """Seconds of the epoch's training, without the evaluation."""
    loss: float
    """Mean training loss of the epoch, which no placement changes but by rounding."""
    memory_gib: tuple[float, ...]
    """Largest memory in use on each device; of logical devices of a CPU, computed from what a step keeps."""
    busy_s: tuple[float, ...] = ()
    """Seconds of the epoch in which each device worked on its stage of a pipeline; empty for other placements."""
    profile: StepProfile | None = None
    trace: bytes | None = None
    """The profiled steps in the Chrome trace format, compressed by gzip, which ui.perfetto.dev opens."""


@dataclass(frozen=True, slots=True)
class MeasuredPlacement:
    """A placement with its turns; without any if it failed."""

    name: str
    parts: Mapping[str, int]
    """Device of each placed part by the part's name; all else is on device 0."""
    stages: tuple[str, ...] = ()
    """Submodules with which the second and later stages of a pipeline begin; a stage is on a device of its own."""
    micro_batches: int = 1
    """Parts of a batch that follow each other through a pipeline."""
    turns: tuple[PlacementTurn, ...] = ()
    fault: str | None = None
    """Why it could not be trained, in one line."""

    @property
    def epoch_s(self) -> float:
        """Mean seconds of an epoch."""
        return fmean(turn.epoch_s for turn in self.turns)

    @property
    def memory_gib(self) -> tuple[float, ...]:
        """Largest memory of each device over the turns, in GiB."""
        return tuple(max(peaks) for peaks in zip(*(turn.memory_gib for turn in self.turns), strict=True))

    @property
    def bubble(self) -> float | None:
        """Share of a pipeline's time in which a device waits, over the turns; None of another placement."""
        if not self.stages or not self.turns:
            return None
        worked = sum(sum(turn.busy_s) for turn in self.turns)
        return 1 - worked / ((len(self.stages) + 1) * sum(turn.epoch_s for turn in self.turns))

    @property
    def profile(self) -> StepProfile | None:
        """The step under the profiler, of the first turn."""
        return self.turns[0].profile if self.turns else None


@dataclass(frozen=True, slots=True)
class ComparedPlacements:
    """The fastest placement, and what was gained over one device."""

    best: MeasuredPlacement | None
    """None if every placement failed."""
    speedups: Mapping[str, Interval]
    """Seconds on one device over a placement's, by the placement's name; without those that failed, and empty if one
    device failed."""
    loss_differences: Mapping[str, float]
    """Largest relative difference of a turn's loss from that on one device, likewise."""


def require_possible(placements: Placements, known: Collection[str], num_devices: int) -> None:
    """Raise BadInput with a line for each part or device that is not there. known: parts that can be placed."""
    faults = []
    for name, parts in placements.items():
        for part, device in parts.items():
            if part not in known:
                near = difflib.get_close_matches(part, known, n=1)
                there = f"did you mean {near[0]!r}? " if near else ""
                faults.append(f"placements.{name}: the model has no part {part!r}; {there}it has: {_few(known)}")
            elif not 0 <= device < num_devices:
                devices = f"devices 0 to {num_devices - 1}"
                faults.append(f"placements.{name}.{part}: read device {device}; there are {devices}")
    if faults:
        raise BadInput(faults)


def _few(names: Collection[str], most: int = 20) -> str:
    shown = list(names)[:most]
    return ", ".join(shown) + (f" and {len(names) - most} more" if len(names) > most else "")


def alternating(units: Sequence[str], num_devices: int) -> dict[str, int]:
    """Return the placement of the smallest parts on one device after the other. units: in the order of their calls."""
    return {unit: place % num_devices for place, unit in enumerate(units)}


def compare(measured: Sequence[MeasuredPlacement]) -> ComparedPlacements:
    """Compare the placements with one device, turn by turn.

    The best is the fastest by its mean among those that the turns show to be faster than one device; else one device.
    If one device does not hold the model, it is the fastest of the others.
    """
    sound = [placement for placement in measured if placement.turns]
    one = next((placement for placement in sound if placement.name == ONE), None)
    if one is None:
        return ComparedPlacements(min(sound, key=lambda each: each.epoch_s, default=None), {}, {})
    seconds = [turn.epoch_s for turn in one.turns]
    speedups = {each.name: ratio(seconds, [turn.epoch_s for turn in each.turns]) for each in sound if each is not one}
    faster = [each for each in sound if each is not one and speedups[each.name].low > 1]
    best = min(faster, key=lambda each: each.epoch_s, default=one)
    differences = {each.name: _difference(each.turns, one.turns) for each in sound}
    return ComparedPlacements(best, {ONE: Interval.exactly(1.0)} | speedups, differences)


def _difference(turns: Sequence[PlacementTurn], others: Sequence[PlacementTurn]) -> float:
    """Return the largest relative difference between the losses of turns in pairs."""
    pairs = zip(turns, others, strict=True)
    return max(abs(turn.loss - other.loss) / max(abs(other.loss), SMALLEST_LOSS) for turn, other in pairs)
