"""The axis of time since a run's first start, in seconds, minutes or hours, as the run is long."""

from __future__ import annotations

from dataclasses import dataclass

from raygpu.records.run_data import RunData


@dataclass(frozen=True, slots=True)
class TimeScale:
    """A unit of time, and the moment from which it is counted."""

    began_s: float
    """Moment in Unix seconds."""
    unit_s: float
    unit: str

    @property
    def title(self) -> str:
        """Title of the axis."""
        return f"{self.unit} since the run's first start"

    def at(self, moment_s: float) -> float:
        """Return a moment on the axis. moment_s: in Unix seconds."""
        return (moment_s - self.began_s) / self.unit_s

    def whole(self, run: RunData) -> tuple[float, float]:
        """Return the axis' range: from the run's first start, so that a late first trial is seen, to its end."""
        return 0.0, 1.01 * max(self.at(run.ended_s), 1e-3)

    def bar(self, began_s: float, ended_s: float) -> tuple[float, float]:
        """Return the place and the width of a bar between two moments."""
        return self.at(began_s), (ended_s - began_s) / self.unit_s


def time_scale(*runs: RunData) -> TimeScale:
    """Return the axis for one run, or for the longest of several; of several, each is to be counted from its start."""
    longest_s = max(run.ended_s - run.began_s for run in runs)
    unit_s, unit = (
        (1.0, "seconds") if longest_s < 180 else (60.0, "minutes") if longest_s < 3 * 3600 else (3600.0, "hours")
    )
    return TimeScale(runs[0].began_s, unit_s, unit)
