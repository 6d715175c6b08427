"""The records of a running sweep's trials: they take in results, and give a snapshot, the best trial and counts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import RLock
from typing import Any

from raygpu.errors import UnknownMetric, kind, last_line
from raygpu.records.clock import command_age_s
from raygpu.search.trials import EpochResult, Scoring, Status, Trial, TrialRecord

SIMULATED = "one simulated GPU"
ESTIMATED_FROM_S = 5.0
"""Seconds of training after which the time left is estimated, if less than half of the work is done."""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU of the sweep, or the simulated one."""

    index: int
    """Index over all nodes of the sweep."""
    node_id: str
    local_id: str
    """Ray's name of the device on its node: a number or a UUID."""
    name: str
    uuid: str | None = None
    memory_gib: float | None = None
    """Memory of the whole device."""
    rgu: float | None = None
    """Worth in Reference GPU Units; None if unknown."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a sweep at one moment."""

    elapsed_s: float
    num_trials: int
    running: int
    finished: int
    """Trials that finished without diverging."""
    stopped: int
    failed: int
    best: TrialRecord | None
    samples_per_s: dict[int, float | None]
    """Samples/s by GPU, summed over the trials that run there; None if no trial reports any."""
    time_left_s: float | None
    diverged: int = 0

    @property
    def ended(self) -> int:
        """Number of trials that will not go on."""
        return self.finished + self.diverged + self.stopped + self.failed


def diverged(record: TrialRecord) -> bool:
    """Return whether a trial has ended by diverging."""
    return record.diverged and record.status == "finished"


class Records:
    """The trials' records. Safe to call from any thread."""

    def __init__(self, num_trials: int, scoring: Scoring, devices: Sequence[Device], epochs: int | None) -> None:
        self.num_trials = num_trials
        self.scoring = scoring
        self.devices = list(devices)
        self.epochs = epochs
        self.by_id: dict[str, TrialRecord] = {}
        self.retries = 0
        """Number of times that a trial went on after its worker was lost."""
        self.out_of_memory = 0
        """Number of times that a trial went on with a larger share of its GPU."""
        self.hopeless: str | None = None
        """Error with which the first trials have all failed, which ends the sweep; None otherwise."""
        self.first_epoch_s: float | None = None
        """Seconds from the start of this process to the first result of any trial."""
        self.spent: dict[str, float] = {}
        """Seconds of all workers together by activity, since this process began."""
        self._started = time.monotonic()
        self._began = self._started
        """Start of the training in this process; that of the process until an epoch tells how long it trained."""
        self._done_before = 0.0
        """Trials' worth of work that an earlier start of a resumed sweep has done."""
        self._gpu_samples: dict[int, int] = {}
        self._held_since: dict[str, float] = {}
        """Moment at which each holder of a share of a GPU was last charged, by the monotonic clock."""
        self._lock = RLock()

    def start(self, trial: Trial) -> TrialRecord:
        """Note that a trial's worker has started: for the first time, again after a loss, or anew after a failure."""
        with self._lock:
            record = self.by_id.get(trial.trial_id)
            if record is None or record.ended:
                used = record.rgu_hours if record is not None else None
                record = self.by_id[trial.trial_id] = TrialRecord(trial, rgu_hours=used, which=self.scoring.which)
            record.status = "running"
            return record

    def add(
        self,
        trial_id: str,
        results: Iterable[EpochResult],
        gpu_index: int | None,
        best: tuple[float, int] | None = None,
    ) -> list[EpochResult]:
        """Take in epochs; return the new ones (a trial that goes on from a checkpoint repeats some).

        best: the trial's best score and its epoch, as known to the worker, which has kept its parameters. A trial that
        repeats epochs after a loss may have another one than before.
        """
        with self._lock:
            record = self.by_id[trial_id]
            record.gpu_index = gpu_index if gpu_index is not None else record.gpu_index
            new = [result for result in results if result.epoch > record.epochs]
            if new and self.first_epoch_s is None:
                self.first_epoch_s = command_age_s()
                if all(result.train_s is not None for result in new):  # the start of Ray's workers is over
                    self._began = time.monotonic() - sum(result.train_s or 0.0 for result in new)
            for result in new:
                record.epochs = result.epoch
                record.metrics = dict(result.metrics)
                record.diverged = self.scoring.diverged(result.metrics)
                with suppress(UnknownMetric):
                    record.standing.take(self.scoring, result)
                if result.num_samples is not None and result.train_s is not None:
                    record.samples_seen += result.num_samples
                    record.train_s += result.train_s
                    if gpu_index is not None:
                        self._gpu_samples[gpu_index] = self._gpu_samples.get(gpu_index, 0) + result.num_samples
                    record.samples_per_s = record.samples_seen / record.train_s
                else:
                    rate = result.samples_per_s  # a function's or script's own
                    record.samples_per_s = rate if rate is not None and math.isfinite(rate) else None
            if best is not None:
                record.standing.best, record.standing.best_epoch = best
            record.score = record.standing.score(self.scoring)
            return new

    def spend(self, seconds: Mapping[str, float]) -> None:
        """Add a worker's seconds by activity."""
        with self._lock:
            for activity, more in seconds.items():
                self.spent[activity] = self.spent.get(activity, 0.0) + more

    def hold(self, holder: str) -> None:
        """Note that a Tune trial begins to hold its share of a GPU."""
        with self._lock:
            self._held_since[holder] = time.monotonic()

    def charge(self, holder: str, trial_ids: Sequence[str], gpu_index: int | None, gpu_share: float) -> None:
        """Charge the RGU-hours since the holder's last charge, in equal parts to its trials that have not ended."""
        with self._lock:
            now = time.monotonic()
            since = self._held_since.get(holder, now)
            self._held_since[holder] = now
            value = next((device.rgu for device in self.devices if device.index == gpu_index), None)
            running = [record for name in trial_ids if not (record := self.by_id[name]).ended]
            if value is None:
                return
            for record in running:
                hours = (now - since) / 3600 * gpu_share * value / len(running)
                record.rgu_hours = (record.rgu_hours or 0.0) + hours

    def rgu_hours(self) -> float | None:
        """Return the RGU-hours of all trials together; None if no GPU's worth is known."""
        with self._lock:
            known = [record.rgu_hours for record in self.by_id.values() if record.rgu_hours is not None]
        return sum(known) if known else None

    def any_scored(self) -> bool:
        """Return whether any trial has reported the metric."""
        with self._lock:
            return any(record.score is not None for record in self.by_id.values())

    def end(self, trial_id: str, status: Status, *, error: str | None = None, reason: str | None = None) -> TrialRecord:
        """Set a trial's final status; return its record. error: a traceback. reason: of an early stop."""
        with self._lock:
            record = self.by_id[trial_id]
            record.status, record.error, record.reason = status, error, reason
            return record

    def common_failure(self, least: int) -> str | None:
        """Return the error's last line if at least so many trials have ended, all of them by the same type of error."""
        with self._lock:
            ended = [record for record in self.by_id.values() if record.ended]
        lines = [last_line(record.error or "") for record in ended if record.status == "failed"]
        alike = len(set(map(kind, lines))) == 1
        return lines[0] if alike and len(lines) == len(ended) >= least else None

    def failures(self) -> list[str]:
        """Return the last line of each failed trial's traceback."""
        with self._lock:
            errors = [record.error for record in self.by_id.values() if record.status == "failed" and record.error]
        return [last_line(error) for error in errors]

    def interrupt(self, told: Callable[[TrialRecord], None]) -> bool:
        """Mark running trials as interrupted, and pass each to `told`; return whether the sweep is short of trials."""
        with self._lock:
            running = [record for record in self.by_id.values() if not record.ended]
            for record in running:
                record.status = "interrupted"
                told(record)
            return bool(running) or len(self.by_id) < self.num_trials

    def ranked(self) -> list[TrialRecord]:
        """Return the trials with a score, the best first, diverged ones last; failed ones are left out."""
        with self._lock:
            scored = [r for r in self.by_id.values() if r.score is not None and r.status != "failed"]
        sign = -1 if self.scoring.maximize else 1
        return sorted(scored, key=lambda r: (r.diverged, sign * (r.score or 0.0), r.trial.trial_id))

    def count(self, *statuses: Status) -> int:
        """Count the trials of these statuses, without those that diverged."""
        with self._lock:
            return sum(record.status in statuses and not diverged(record) for record in self.by_id.values())

    def count_diverged(self) -> int:
        """Count the trials that ended because their loss or metric was no longer finite."""
        with self._lock:
            return sum(map(diverged, self.by_id.values()))

    def snapshot(self) -> Snapshot:
        """Return the state of the sweep at this moment."""
        with self._lock:
            elapsed_s = time.monotonic() - self._started
            ranked = self.ranked()
            return Snapshot(
                elapsed_s=elapsed_s,
                num_trials=self.num_trials,
                running=self.count("running"),
                finished=self.count("finished"),
                stopped=self.count("stopped"),
                failed=self.count("failed"),
                best=ranked[0] if ranked and not ranked[0].diverged else None,
                samples_per_s={device.index: self._rate(device.index) for device in self.devices},
                time_left_s=self._time_left(),
                diverged=self.count_diverged(),
            )

    def _rate(self, gpu_index: int) -> float | None:
        """Return the sum of the latest throughputs of the trials that run on a GPU; None without any."""
        rates = [
            record.samples_per_s
            for record in self.by_id.values()
            if record.status == "running" and record.gpu_index == gpu_index and record.samples_per_s is not None
        ]
        return sum(rates) if rates else None

    def _time_left(self) -> float | None:
        """Estimate the seconds left by the work done since the training began; None while that is little."""
        all_done = self._done()
        done, left = all_done - self._done_before, self.num_trials - all_done
        spent_s = time.monotonic() - self._began
        if left <= 0:
            return 0.0
        if done <= 0 or (spent_s < ESTIMATED_FROM_S and done < left):
            return None
        return spent_s * left / done

    def _done(self) -> float:
        """Return the work done, in trials; a running trial counts by its epochs if their number is known."""
        done = float(sum(record.ended for record in self.by_id.values()))
        if self.epochs:
            running = (r for r in self.by_id.values() if r.status == "running")
            done += sum(min(1.0, record.epochs / self.epochs) for record in running)
        return done

    def gpu_throughput(self, wall_s: float) -> dict[int, float | None]:
        """Return the training samples/s of each GPU over the whole run; None for a GPU without samples."""
        with self._lock:
            return {
                device.index: self._gpu_samples[device.index] / wall_s if device.index in self._gpu_samples else None
                for device in self.devices
            }

    def state(self) -> dict[str, Any]:
        """Return the state that a resumed sweep starts from; picklable."""
        with self._lock:
            return {
                "by_id": dict(self.by_id),
                "gpu_samples": dict(self._gpu_samples),
                "retries": self.retries,
                "out_of_memory": self.out_of_memory,
                "elapsed_s": time.monotonic() - self._started,
            }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from the result of `state`; the time in between does not count."""
        with self._lock:
            self.by_id, self._gpu_samples = state["by_id"], state["gpu_samples"]
            self.retries, self.out_of_memory = state["retries"], state["out_of_memory"]
            self._started = time.monotonic() - state["elapsed_s"]  # the time between the two does not count
            self._done_before = self._done()
