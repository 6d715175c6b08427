"""One GPU, several trainings on it, or several GPUs for one training: the answer to a profile and a data-parallel run.

    scaling = Scaling((Speedup(1, Interval.exactly(1.0)), Speedup(2, interval_of_two_devices)), "measured")
    advise(profile, scaling).answer      # "several"

Efficiency is the speed-up over one device, divided by the number of devices, with the training's batch unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from raygpu.planning.confidence import Interval
from raygpu.planning.profiles import FILLED, Point, Profile
from raygpu.planning.scaling_laws import Usl

EFFICIENT = 0.8
"""Efficiency below which another device is not worth its cost."""
MOST_DEVICES = 4096
"""Largest number of devices that is predicted."""

Answer = Literal["share", "one", "several", "too_large", "not_known"]
Evidence = Literal["measured", "one_device", "none"]


@dataclass(frozen=True, slots=True)
class Speedup:
    """Throughput of one training on several devices over that on one device."""

    devices: int
    times: Interval

    @property
    def efficiency(self) -> Interval:
        """Speed-up divided by the number of devices."""
        n = self.devices
        return Interval(self.times.middle / n, self.times.low / n, self.times.high / n)


@dataclass(frozen=True, slots=True)
class Scaling:
    """Speed-ups of one training by the number of devices, and where they come from."""

    speedups: tuple[Speedup, ...] = ()
    """The first is of one device; empty if unknown."""
    evidence: Evidence = "none"
    """measured: on several devices; one_device: an upper bound, from the parts of a batch on one device, which leaves
    out the exchange of gradients."""
    notes: tuple[str, ...] = ()
    """Lines that say why something was not measured."""


@dataclass(frozen=True, slots=True)
class Advice:
    """The number of devices that one training is worth, or of trainings that share one device."""

    answer: Answer
    """share: several trainings fill one device; one: one training, one device; several: one training is worth several
    devices; too_large: it does not fit one device."""
    point: Point | None
    """The fastest point of the profile; None if nothing could be measured."""
    scaling: Scaling = Scaling()
    devices: int = 1
    """Largest number of devices with an efficiency of `EFFICIENT` or more."""
    surely: int = 1
    """The same by the lower ends of the confidence intervals."""
    at_most: int = 1
    """The same by the upper ends."""
    predicted: bool = False
    """Whether `devices` is beyond what was measured, by the Universal Scalability Law."""


def advise(profile: Profile, scaling: Scaling = Scaling()) -> Advice:
    """Return where one training should run. scaling: of the same training."""
    best, highest = profile.best(), profile.highest()
    if best is None or highest is None or best.gain is None:
        full = any(p.n == 1 and p.fault == "out of memory" for p in profile.points)
        return Advice("too_large" if full else "not_known", None, scaling)
    if best.n > 1 and best.gain >= FILLED:
        return Advice("share", best, scaling)
    if best.gain < FILLED <= highest.spread.middle:
        return Advice("not_known", best, scaling)
    if len(scaling.speedups) < 2:
        return Advice("one", best, scaling)
    efficiencies = [(s.devices, s.efficiency) for s in scaling.speedups]
    devices = _efficient([(n, efficiency.middle) for n, efficiency in efficiencies])
    surely = _efficient([(n, efficiency.low) for n, efficiency in efficiencies])
    at_most = _efficient([(n, efficiency.high) for n, efficiency in efficiencies])
    last = max(n for n, _ in efficiencies)
    beyond = last
    if devices == last and scaling.evidence == "measured":
        beyond = _predicted(scaling.speedups, profile.batch_size)
    answer: Answer = "several" if devices > 1 else "one"
    if beyond > last:
        return Advice(answer, best, scaling, beyond, surely, beyond, predicted=True)
    return Advice(answer, best, scaling, devices, surely, at_most)


def _efficient(efficiencies: Sequence[tuple[int, float]]) -> int:
    """Return the last number of devices before the efficiency falls below `EFFICIENT`, and 1 at least."""
    num_devices = 1
    for devices, efficiency in sorted(efficiencies):
        if efficiency < EFFICIENT:
            break
        num_devices = max(num_devices, devices)
    return num_devices


def _predicted(speedups: Sequence[Speedup], batch_size: int | None) -> int:
    """Return the number of devices at which the fitted efficiency is still `EFFICIENT`: at most one for each sample of
    a batch."""
    law = Usl.fit({s.devices: s.times.middle for s in speedups})
    last = max(s.devices for s in speedups)
    most = max(last, min(batch_size or MOST_DEVICES, MOST_DEVICES))
    return max((n for n in range(last, most + 1) if law.at(n) >= EFFICIENT * n * law.rate), default=last)


def numbers_of_devices(devices: int, batch_size: int | None) -> list[int]:
    """Return the numbers of devices to measure: 1, 2, 4 ... and all of them, at most one for each sample of a batch."""
    most = min(devices, batch_size or devices)
    powers = [1 << power for power in range(int(math.log2(most)) + 1)]
    return sorted({*powers, most})
