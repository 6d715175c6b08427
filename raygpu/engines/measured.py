"""One way at one number of trainings, while its windows come in, and the point that they make."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from raygpu.engines.probe_actor import Fault
from raygpu.errors import last_line
from raygpu.profiles import Point
from raygpu.sections import Way


@dataclass(slots=True)
class Measured:
    """One way at one number of trainings, while its windows come in."""

    way: Way
    n: int
    threads: int
    actors: list[Any]
    step_s: float = 0.0
    evaluation_s: float | None = None
    start_s: float | None = None
    compiled: bool = False
    rates: list[float] = field(default_factory=list)
    gains: list[float] = field(default_factory=list)
    readings: list[dict[str, float]] = field(default_factory=list)
    host_gib: float | None = None
    device_gib: float | None = None
    fault: Fault | None = None

    def point(self) -> Point:
        rated = self.fault is None and self.rates
        fault = None
        if self.fault is not None:
            fault = "out of memory" if self.fault.out_of_memory else last_line(self.fault.text)
        return Point(
            self.way,
            self.n,
            samples_per_s=median(self.rates) if rated else None,
            gain=median(self.gains) if rated else None,
            compiled=self.compiled,
            rounds=tuple(self.rates),
            threads=self.threads,
            evaluation_s=self.evaluation_s,
            start_s=self.start_s,
            host_gib=self.host_gib,
            device_gib=self.device_gib,
            fault=fault,
            **{name: fmean(r[name] for r in self.readings) for name in (self.readings[0] if self.readings else ())},
        )
