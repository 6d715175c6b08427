"""Whether a GPU was used too little while a run held it, by what was measured there.

NVML's utilisation is the part of the time in which any kernel ran. A low one shows an idle GPU; a high one shows
nothing, since one small kernel counts as much as a full GPU. How full the GPU was while kernels ran is told by its SM
activity, which Hopper and newer GPUs measure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["empty", "idle", "light"]
"""empty: no trial was there. idle: trials were there, and no kernel ran. light: kernels ran, and filled little."""
LONG_S = 60.0
"""Minimum length of an underuse to report, in seconds."""
LARGE_PART = 0.3
"""Minimum share of the measured time that an underuse takes to be reported."""
LIGHT_PCT = 30.0
"""SM activity in percent below which a GPU counts as hardly filled."""
BUSY_CPU_PCT = 85.0
"""Use of all CPUs in percent from which they count as what binds."""
LONGEST_S = 5.0
"""Longest time in seconds that one sample stands for: nothing was measured in a longer gap, as between two starts."""

Sample = tuple[float, Mapping[str, float]]
"""Moment in Unix seconds, and readings by name."""


@dataclass(frozen=True, slots=True)
class Underutilization:
    """The use of a GPU that was too low for long."""

    gpu: int
    """Index of the GPU."""
    kind: Kind
    lost_s: float
    """Seconds without a trial, or without a kernel; for a light use, those with trials."""
    of_s: float
    """Measured seconds: all of them for an empty GPU, else those with trials."""
    sm_util_pct: float | None = None
    """Mean SM activity while trials were there; None where the GPU does not measure it."""
    cpu_pct: float | None = None
    """Mean use of all CPUs meanwhile; None where it is not known."""

    @property
    def cpu_binds(self) -> bool:
        """Whether the CPUs were busy while the GPU waited."""
        return self.kind != "empty" and self.cpu_pct is not None and self.cpu_pct >= BUSY_CPU_PCT


def under_use(
    gpu: int, stays: Sequence[tuple[float, float]], samples: Sequence[Sample], host: Sequence[Sample] = ()
) -> Underutilization | None:
    """Return how a GPU was used too little; None if it was not, or if nothing tells.

    stays: begin and end of each trial's stay on the GPU, in Unix seconds. samples: readings of the GPU in the order of
    time, with `util_pct` and perhaps `sm_util_pct`. host: readings of the machine, with `cpu_pct`.
    """
    timed = [(at, seconds, values) for at, seconds, values in _timed(samples) if "util_pct" in values]
    covered = _merged(stays)
    stay_samples = [sample for sample in timed if _within(sample[0], covered)]
    machine = [(s, values["cpu_pct"]) for at, s, values in _timed(host) if "cpu_pct" in values and _within(at, covered)]
    all_s, held_s = sum(seconds for _, seconds, _ in timed), sum(seconds for _, seconds, _ in stay_samples)
    if _is_long(all_s - held_s, all_s):
        return Underutilization(gpu, "empty", all_s - held_s, all_s)
    if not held_s:
        return None
    idle_s = sum(seconds * (1 - values["util_pct"] / 100) for _, seconds, values in stay_samples)
    sm = _mean([(seconds, values["sm_util_pct"]) for _, seconds, values in stay_samples if "sm_util_pct" in values])
    cpu = _mean(machine)
    if _is_long(idle_s, held_s):
        return Underutilization(gpu, "idle", idle_s, held_s, sm, cpu)
    if sm is not None and sm < LIGHT_PCT and held_s >= LONG_S:
        return Underutilization(gpu, "light", held_s, held_s, sm, cpu)
    return None


def _is_long(seconds: float, of_s: float) -> bool:
    return seconds >= max(LONG_S, LARGE_PART * of_s)


def _timed(samples: Sequence[Sample]) -> list[tuple[float, float, Mapping[str, float]]]:
    """Return each sample with the seconds that it stands for: those to the next one."""
    ends = [at for at, _ in samples[1:]] + [samples[-1][0]] if samples else []
    return [(at, min(end - at, LONGEST_S), values) for (at, values), end in zip(samples, ends, strict=True)]


def _merged(stays: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the times of the stays, in order and without overlaps."""
    spans: list[tuple[float, float]] = []
    for began, ended in sorted(stays):
        if spans and began <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], ended))
        else:
            spans.append((began, ended))
    return spans


def _within(moment: float, times: Sequence[tuple[float, float]]) -> bool:
    place = bisect_right(times, (moment, float("inf"))) - 1
    return place >= 0 and moment <= times[place][1]


def _mean(weighted: Sequence[tuple[float, float]]) -> float | None:
    """Return the mean of values with weights; None without any weight."""
    total_weight = sum(weight for weight, _ in weighted)
    return sum(weight * value for weight, value in weighted) / total_weight if total_weight else None
