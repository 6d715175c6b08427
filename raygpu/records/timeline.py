"""`timeline.jsonl` of a run: its curves, what ran on which GPU when, and the GPUs' readings, for the report.

A line each, as JSON: `start` with the moment; `run`, a Tune trial from the moment that it got its share of a GPU to its
end; `epochs`, a trial's new epochs; `again`, an attempt to train it that goes on after an earlier epoch than that of
the last line, whose later epochs no longer count; `gpu`, readings of a GPU; `host`, of the machine. A later start of
the same run adds to the file.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Literal

from raygpu.errors import one_line
from raygpu.records.whole_files import append_lines
from raygpu.search.trials import EpochResult

End = Literal["complete", "lost", "error", "interrupted"]
"""Ends of a Tune trial's stay on its GPU; lost: with its worker."""
MOST_METRICS = 4
"""Largest number of a trial's metrics whose curves are kept: the score's, then those of losses."""
TRAINING = "training"
"""Stands for the trial's id in the curves of a production training."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """A Tune trial's stay on a GPU: of one trial, or of an array of them."""

    name: str
    trial_ids: tuple[str, ...]
    gpu: int | None
    """Index of the GPU; None if the trial ended before its first result."""
    share: float
    """Share of the GPU, from 0 to 1."""
    began_s: float
    """Moment at which it got its share, in Unix seconds."""
    ended_s: float
    end: End


@dataclass(slots=True)
class RunTimeline:
    """The content of a run's `timeline.jsonl`. Moments are in Unix seconds."""

    starts: list[float] = field(default_factory=list)
    """Moments at which the run was started, and gone on with."""
    occupancies: list[Occupancy] = field(default_factory=list)
    curves: dict[str, dict[int, dict[str, float]]] = field(default_factory=dict)
    """Metrics by trial, epoch and name; without trials that have no epoch, or begin again."""
    furthest: dict[str, int] = field(default_factory=dict)
    """Last epoch that any attempt has noted, by trial: MLflow has the metrics up to it."""
    ended_s: dict[str, dict[int, float]] = field(default_factory=dict)
    """Moment at which the driver heard of an epoch, by trial and epoch."""
    readings: dict[int, list[tuple[float, dict[str, float]]]] = field(default_factory=dict)
    """Moments and readings by GPU, in the order of time: `samples_per_s`, and what NVML gives."""
    host: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    """Moments and readings of the machine: `cpu_pct`, the use of all CPUs; empty where workers run on other nodes."""
    lasted_s: list[float] = field(default_factory=list)
    """Seconds from each start to the last moment that it has noted."""

    def goes_on_after(self, moment: float) -> bool:
        """Return whether it has an epoch, or the end of a trial, after a moment in Unix seconds."""
        epochs = (max(moments.values()) for moments in self.ended_s.values())
        ends = (stay.ended_s for stay in self.occupancies if stay.end in ("complete", "error"))
        return max((*epochs, *ends), default=0.0) > moment


class Timeline:
    """Writer of `timeline.jsonl`. Safe to call from any thread; lines wait in memory until `flush`.

    A disk that takes no more fails no run: the lines wait until it does.
    """

    def __init__(self, path: Path | None, metric: str = "") -> None:
        """Open nothing yet. path: None to keep no timeline. metric: the score's."""
        self._path = path
        self._metric = metric
        self._lines: list[str] = []
        self._fault: str | None = None
        """Reason why the disk did not take the waiting lines the last time."""
        self._held: dict[str, dict[str, Any]] = {}
        self._lock = Lock()
        earlier = read(path).curves if path is not None else {}
        self._last = {trial: max(curve, default=0) for trial, curve in earlier.items()}
        """Last epoch noted of each trial, those of earlier starts among them."""
        self._add("start", at=_now())

    def hold(self, holder: str, name: str, trial_ids: Sequence[str], share: float) -> None:
        """Note that a Tune trial has got its share of a GPU. holder: its id."""
        self.release(holder, "interrupted")  # it was paused meanwhile
        with self._lock:
            self._held[holder] = {"name": name, "trials": list(trial_ids), "share": round(share, 4), "from": _now()}

    def place(self, holder: str, gpu: int | None) -> None:
        """Note on which GPU a Tune trial runs."""
        with self._lock:
            if holder in self._held:
                self._held[holder]["gpu"] = gpu

    def release(self, holder: str, end: End) -> None:
        """Note that a Tune trial has given its share back."""
        with self._lock:
            occupancy = self._held.pop(holder, None)
        if occupancy is not None:
            self._add("run", **occupancy, to=_now(), end=end)

    def epochs(self, trial_id: str, results: Sequence[EpochResult]) -> None:
        """Note a trial's new epochs."""
        if results:
            rows = [[result.epoch, self._kept(result.metrics)] for result in results]
            self._add("epochs", trial=trial_id, at=_now(), rows=rows)
            self._last[trial_id] = max(self.last_epoch(trial_id), results[-1].epoch)

    def go_back(self, trial_id: str, epoch: int) -> bool:
        """Note that another attempt to train a trial goes on after an epoch; return whether later ones were noted.

        They no longer count.
        """
        if self.last_epoch(trial_id) <= epoch:
            return False
        self._add("again", trial=trial_id, at=_now(), after=epoch)
        self._last[trial_id] = epoch
        return True

    def last_epoch(self, trial_id: str) -> int:
        """Return the last epoch that counts of a trial; 0 without any."""
        return self._last.get(trial_id, 0)

    def gpu(self, index: int, readings: Mapping[str, float]) -> None:
        """Note readings of a GPU at this moment."""
        self._add("gpu", gpu=index, at=_now(), **{name: _short(value) for name, value in readings.items()})

    def host(self, cpu_pct: float) -> None:
        """Note the use of all CPUs of this machine, in percent, since the last time."""
        self._add("host", at=_now(), cpu_pct=_short(cpu_pct))

    def _kept(self, metrics: Mapping[str, float]) -> dict[str, float]:
        main_metrics = (self._metric, f"validation/{self._metric}", "validation/loss")
        names = [name for name in metrics if name in main_metrics]
        names += [name for name in metrics if name not in main_metrics and name.lower().endswith("loss")]
        return {name: _short(metrics[name]) for name in names[:MOST_METRICS]}

    def _add(self, event: str, **values: Any) -> None:
        if self._path is not None:
            line = json.dumps({"event": event, **values}, separators=(",", ":"))
            with self._lock:
                self._lines.append(line)

    def flush(self) -> None:
        """Append the waiting lines to the file, as far as the disk takes them."""
        with self._lock:
            if self._path is None or not self._lines:
                return
            try:
                append_lines(self._path, "\n".join(self._lines) + "\n")
            except OSError as error:
                self._fault = error.strerror or one_line(error)
                return
            self._lines.clear()

    def close(self) -> str | None:
        """Note that what still holds a GPU was interrupted, and write the waiting lines; return a line for the user if
        the disk does not take them."""
        for holder in list(self._held):
            self.release(holder, "interrupted")
        self.flush()
        if not self._lines:
            return None
        return f"{self._path} cannot be written: {self._fault}; its last {len(self._lines):,} lines are lost"


def read(path: Path) -> RunTimeline:
    """Return the content of a run's file; empty without the file. A line that a crash cut off is left out."""
    timeline = RunTimeline()
    if not path.is_file():
        return timeline
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            with suppress(ValueError, KeyError, TypeError, AttributeError):
                noted = json.loads(line)
                _take(timeline, noted)
                if timeline.starts and "at" in noted:
                    timeline.lasted_s[-1] = max(timeline.lasted_s[-1], float(noted["at"]) - timeline.starts[-1])
    return timeline


def _take(timeline: RunTimeline, noted: Mapping[str, Any]) -> None:
    match noted["event"]:
        case "start":
            timeline.starts.append(float(noted["at"]))
            timeline.lasted_s.append(0.0)
        case "run":
            timeline.occupancies.append(
                Occupancy(
                    name=str(noted["name"]),
                    trial_ids=tuple(map(str, noted["trials"])),
                    gpu=noted.get("gpu"),
                    share=float(noted["share"]),
                    began_s=float(noted["from"]),
                    ended_s=float(noted["to"]),
                    end=noted["end"],
                )
            )
        case "epochs":
            curve = timeline.curves.setdefault(noted["trial"], {})
            moments = timeline.ended_s.setdefault(noted["trial"], {})
            for epoch, metrics in noted["rows"]:
                curve[int(epoch)] = {name: float(value) for name, value in metrics.items()}
                moments[int(epoch)] = float(noted["at"])
                timeline.furthest[noted["trial"]] = max(timeline.furthest.get(noted["trial"], 0), int(epoch))
        case "again":
            _forget_after(timeline.curves, noted["trial"], noted["after"])
            _forget_after(timeline.ended_s, noted["trial"], noted["after"])
        case "gpu":
            values = {name: float(value) for name, value in noted.items() if name not in ("event", "gpu", "at")}
            timeline.readings.setdefault(int(noted["gpu"]), []).append((float(noted["at"]), values))
        case "host":
            timeline.host.append((float(noted["at"]), {"cpu_pct": float(noted["cpu_pct"])}))


def _forget_after(by_trial: dict[str, dict[int, Any]], trial: str, epoch: int) -> None:
    """Delete a trial's values of later epochs, and the trial where none is left."""
    values = by_trial.get(trial, {})
    for later in [each for each in values if each > epoch]:
        del values[later]
    if not values:
        by_trial.pop(trial, None)


def _now() -> float:
    return round(time.time(), 2)


def _short(value: float) -> float:
    """Return a number with six significant digits; what is no number, as a user's own metric may be, as NaN."""
    with suppress(TypeError, ValueError):
        return float(f"{float(value):.6g}")
    return float("nan")
