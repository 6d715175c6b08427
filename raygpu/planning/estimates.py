"""The speed and memory of a sweep's trainings that are known before the sweep is planned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from raygpu.config import SweepConfig
from raygpu.planning.cost_model import ProfiledGroup, Size
from raygpu.planning.gpu_shares import Node
from raygpu.planning.profiles import Profile
from raygpu.planning.scaling_laws import Affine
from raygpu.search.generations import Generations
from raygpu.search.repeats import given_at_once
from raygpu.search.signature import Group, Signature
from raygpu.search.stopping import expected_epochs


@dataclass(frozen=True, slots=True)
class Hardware:
    """The machines and devices that a sweep runs on, as a plan sees them."""

    nodes: Sequence[Node]
    names: Sequence[str]
    """Names of the devices."""
    device: str
    """The type that profiles are kept by: the first GPU's name, or the processor's where one is simulated."""
    device_gib: float | None
    num_cpus: float
    """CPUs of the first machine."""
    uuid: str | None = None
    """UUID of the first GPU; None where one is simulated, or is another machine's."""

    @property
    def free_gib(self) -> float | None:
        """Free memory of a device of the first one's type; all its memory where that is unknown."""
        alike = (
            node.free_gib for node in self.nodes if (node.device, node.device_gib) == (self.device, self.device_gib)
        )
        return next((free_gib for free_gib in alike if free_gib is not None), self.device_gib)


@dataclass(slots=True)
class Estimates:
    """Profiles of a sweep's signatures."""

    own: dict[Signature, Profile] = field(default_factory=dict)
    reference: Profile | None = None
    """Profile of the largest group: for groups that have none of their own."""
    source: str = ""
    """Origin of the reference, in a few words."""
    is_timed_now: bool = False
    """Whether a few steps that were timed just now decide, or the time that they tell."""
    prefers_arrays: bool = False
    """Whether arrays are to be taken where nothing is measured."""
    kept: Profile | None = None
    """Kept profile of the largest group where the plan had nothing to choose, and so no reference."""
    probe_s: float | None = None
    """Seconds that the probe took; None where the profile was kept."""
    by_device: dict[str, Profile] = field(default_factory=dict)
    """Profiles of the largest group by device type, each measured on that type; empty for GPUs of a single type."""
    elsewhere: Profile | None = None
    """Profile of the largest group on another device."""
    types: tuple[str, ...] = ()
    """Types of the sweep's devices, where there are several."""
    notes: tuple[str, ...] = ()
    """Lines for a person on ways that were not measured, with the reasons."""

    def on(self, device: str) -> Profile | None:
        """Return the largest group's profile for a type of device: its own, or another type's."""
        return self.by_device.get(device, self.reference or self.elsewhere)

    def needs(self) -> dict[str, Affine]:
        """Return the GiB of device memory that n trainings take, by device type."""
        profiles = {device: self.on(device) for device in self.types}
        return {
            device: line
            for device, profile in profiles.items()
            if profile is not None and (line := profile.memory("process", "device_gib")) is not None
        }

    def parts(self, groups: Sequence[Group], config: SweepConfig) -> list[ProfiledGroup]:
        """Return the sweep's trials by signature, with their profiles."""
        assert self.reference is not None
        num_trials = sum(len(group.trials) for group in groups)
        return [
            ProfiledGroup(
                self.own.get(group.signature, self.reference),
                size(config, len(group.trials) / num_trials),
                fusable=group.reason is None,
            )
            for group in groups
        ]


def size(config: SweepConfig, part: float = 1.0) -> Size:
    """Return the size of this part of the sweep's trials."""
    assert config.trials is not None  # a sweep that is prepared knows it
    trainings = config.trials * config.per_set
    trials = max(1, round(trainings * part))

    def given(*, in_arrays: bool) -> int:
        """Return how many of the trials are given out at once."""
        at_once = given_at_once(config, in_arrays=in_arrays) or trainings
        return max(1, min(trials, round(at_once * part)))

    asks = Generations.of(config, in_arrays=True) is not None
    generations = math.ceil(trainings / (given_at_once(config, in_arrays=True) or trainings)) if asks else 1
    return Size(trials, expected_epochs(config), given(in_arrays=False), given(in_arrays=True), generations)


def roughly(profile: Profile) -> Profile:
    """Return a profile with the points in doubt, at the speeds of their own windows.

    Good enough to choose a way for one sweep, whose results are the same in each; not to be kept.
    """
    alone = next((p.samples_per_s for p in profile.points if (p.way, p.n) == ("process", 1)), None)
    points = [
        replace(p, doubt=None, gain=p.samples_per_s / alone, gain_low=None, gain_high=None)
        if p.doubt is not None and p.samples_per_s and alone
        else p
        for p in profile.points
    ]
    return replace(profile, points=tuple(points))
