"""Collect the windows of one way of sharing at one number of trainings, and make a profile's point of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from raygpu.config.sections import Way
from raygpu.engines.profiling.probe_actor import Fault
from raygpu.errors import error_line
from raygpu.planning.confidence import Interval, ratio
from raygpu.planning.profiles import Point

SETTLED = 1.5
"""Ratio of a gain interval's upper to lower end above which more rounds are measured."""


@dataclass(slots=True)
class Measured:
    """Windows measured so far for one way of sharing at one number of trainings."""

    way: Way
    n: int
    threads: int
    actors: list[Any]
    step_s: float = 0.0
    evaluation_s: float | None = None
    start_s: float | None = None
    compiled: bool = False
    rates: list[float] = field(default_factory=list)
    """Samples/s of each round's window."""
    references: list[float] = field(default_factory=list)
    """Samples/s of one training alone in the same rounds."""
    readings: list[dict[str, float]] = field(default_factory=list)
    host_gib: float | None = None
    device_gib: float | None = None
    fault: Fault | None = None

    def add(self, rate: float, reference: float) -> None:
        """Add a round, unless one of its two windows measured nothing. rate, reference: samples/s."""
        if rate > 0 and reference > 0:
            self.rates.append(rate)
            self.references.append(reference)

    @property
    def gain(self) -> Interval:
        """Return the throughput over that of one training alone, paired by rounds."""
        return ratio(self.rates, self.references)

    @property
    def settled(self) -> bool:
        """Return whether no more rounds are needed: the gain's interval is narrow, or the training has failed."""
        return self.fault is not None or (len(self.rates) > 1 and self.gain.width <= SETTLED)

    def point(self) -> Point:
        """Return the medians and means of the rounds as a point; without throughput after a fault."""
        rated = self.fault is None and self.rates
        fault = None
        if self.fault is not None:
            fault = "out of memory" if self.fault.out_of_memory else error_line(self.fault.text)
        gain = self.gain if rated else None
        spread = gain if len(self.rates) > 1 else None
        return Point(
            self.way,
            self.n,
            samples_per_s=median(self.rates) if rated else None,
            gain=gain.middle if gain is not None else None,
            gain_low=spread.low if spread is not None else None,
            gain_high=spread.high if spread is not None else None,
            compiled=self.compiled,
            rounds=tuple(self.rates),
            references=tuple(self.references),
            threads=self.threads,
            evaluation_s=self.evaluation_s,
            start_s=self.start_s,
            host_gib=self.host_gib,
            device_gib=self.device_gib,
            fault=fault,
            doubt=None,
            **{name: fmean(r[name] for r in self.readings) for name in (self.readings[0] if self.readings else ())},
        )
