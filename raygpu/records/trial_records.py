"""The records of a running sweep's trials: they take in results, and give a snapshot, the best trial and counts."""

from __future__ import annotations

import heapq
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from threading import RLock
from typing import Any, Literal

from raygpu.errors import UnknownMetric, error_line, kind
from raygpu.planning.schedule import Schedule
from raygpu.records.clock import command_age_s
from raygpu.records.curve import Curve
from raygpu.records.device import Device
from raygpu.records.gpu_use import GpuUse
from raygpu.records.set_records import SetRecord, ranked_sets
from raygpu.records.snapshot import Leader, Snapshot
from raygpu.records.sweep_pace import SweepPace
from raygpu.search.objectives import front
from raygpu.search.repeats import Repetition
from raygpu.search.scoring import BestEpoch, Scoring, TrialScores, rank
from raygpu.search.trial_record import Change, Status, TrialRecord
from raygpu.search.trials import EpochResult, Order, Trial

SINGLE = Repetition()
LEADERS = 3
"""Number of the best trials in a snapshot."""
ESTIMATE_S = 1.0
"""Seconds between two estimates of the time left."""


class Records:
    """The trials' records. Safe to call from any thread."""

    def __init__(
        self,
        num_trials: int,
        scoring: Scoring,
        devices: Sequence[Device],
        epochs: int | None,
        schedule: Schedule | None = None,
        repetition: Repetition = SINGLE,
    ) -> None:
        """Begin without any trial. num_trials: all that are planned. epochs: of a trial; None if unknown. schedule: for
        the time left, as far as it is known. repetition: trials of each set of hyper-parameters."""
        self._num_planned = num_trials
        self.repetition = repetition
        self.saved: Collection[str] = ()
        """Ids of the planned trials that are left out: of sets that are stopped or clearly worse."""
        self.scoring = scoring
        self.gpus = GpuUse(devices)
        self.epochs = epochs
        self.by_id: dict[str, TrialRecord] = {}
        self.retries = 0
        """Number of times that a trial went on after its worker was lost."""
        self.out_of_memory = 0
        """Number of times that a trial went on with a larger share of its GPU."""
        self.hopeless: str | None = None
        """Error with which the first trials have all failed, which ends the sweep; None otherwise."""
        self.time_budget_s: float | None = None
        """Seconds of the command after which the sweep ends; None without a limit."""
        self.out_of_time = False
        """Whether the time budget ended the sweep before all trials had ended."""
        self.first_epoch_s: float | None = None
        """Seconds from the start of this process to the first result of any trial."""
        self.spent: dict[str, float] = {}
        """Seconds of all workers together by activity, since this process began."""
        self._started = time.monotonic()
        self._pace = SweepPace(schedule or Schedule(epochs))
        self._left: tuple[float, float | None] | None = None
        """Moment and result of the last estimate of the time left."""
        self._curves: dict[str, Curve] = {}
        self._further: dict[str, dict[int, tuple[float | None, ...]]] = {}
        """Values of the further metrics by trial and epoch, at the epochs whose metric was the score."""
        self._lock = RLock()

    @property
    def num_trials(self) -> int:
        """Number of trials of the sweep, without those that are left out."""
        return self._num_planned - len(self.saved)

    def leave_out(self, num_trials: int, saved: Collection[str]) -> None:
        """Set the number of trials, without those that are left out, and which these are, as the sampler knows them
        now."""
        self._num_planned, self.saved = num_trials + len(saved), saved

    def sets(self) -> list[SetRecord]:
        """Return the sets of hyper-parameters that have begun, the best first."""
        with self._lock:
            records = list(self.by_id.values())
        return ranked_sets(records, self.repetition, maximize=self.scoring.maximize, saved=self.saved)

    def set_of(self, set_id: str) -> SetRecord:
        """Return a set that has begun. Raises KeyError if it has not."""
        with self._lock:
            names = [Trial.repeat_name(set_id, number) for number in range(self.repetition.per_set)]
            records = [self.by_id[name] for name in names if name in self.by_id]
        return ranked_sets(records, self.repetition, maximize=self.scoring.maximize, saved=self.saved)[0]

    def start(self, trial: Trial) -> TrialRecord:
        """Note that a trial's worker has started: for the first time, again after a loss, or anew after a failure."""
        with self._lock:
            record = self.by_id.get(trial.trial_id)
            if record is None or record.ended:
                used = record.rgu_hours if record is not None else None
                rule, further = self.scoring.score_rule, self.scoring.further_values({})
                record = TrialRecord(trial, rgu_hours=used, score_rule=rule, further=further)
                self.by_id[trial.trial_id] = record
                self._curves.pop(trial.trial_id, None)
                self._further.pop(trial.trial_id, None)
            record.status = "running"
            return record

    def add(
        self,
        trial_id: str,
        results: Sequence[EpochResult],
        gpu_index: int | None,
        best: BestEpoch | None = None,
    ) -> list[EpochResult]:
        """Take in epochs; return the new ones (a trial that goes on from a checkpoint repeats some).

        best: the trial's best epoch, as known to the worker, which has kept its parameters. A trial that repeats epochs
        after a loss may have another one than before.
        """
        with self._lock:
            record = self.by_id[trial_id]
            if gpu_index is not None:
                record.gpu_index = gpu_index
                self.gpus.used.add(gpu_index)
            new = [result for result in results if result.epoch > record.epochs]
            further = self._further.setdefault(trial_id, {}) if self.scoring.further else {}
            if new and self.first_epoch_s is None:
                self.first_epoch_s = command_age_s()
            for result in new:
                record.epochs = result.epoch
                record.metrics = dict(result.metrics)
                record.diverged = self.scoring.diverged(result.metrics)
                with suppress(UnknownMetric):
                    is_best = record.scores.take(self.scoring, result)
                    is_score = (
                        record.scores.last_epoch == result.epoch if self.scoring.score_rule == "last" else is_best
                    )
                    if is_score:
                        record.further = further[result.epoch] = self.scoring.further_values(result.metrics)
                    if record.scores.last is not None and math.isfinite(record.scores.last):
                        self._curves.setdefault(trial_id, Curve()).add(result.epoch, record.scores.last)
                if result.num_samples is not None and gpu_index is not None:
                    self.gpus.add(gpu_index, result.num_samples)
            if new:
                record.add_throughput(new)
            if best is not None:
                record.scores.best, record.scores.best_epoch, record.scores.best_loss = best
                further |= {r.epoch: self.scoring.further_values(r.metrics) for r in results if r.epoch == best.epoch}
                record.further = further.get(best.epoch, record.further)
            record.score = record.scores.score(self.scoring)
            return new

    def go_back(self, trial_id: str, epoch: int, scores: TrialScores) -> bool:
        """Drop what a trial has reported after an epoch, from which another attempt goes on; return whether there was
        any. scores: up to this epoch, as its checkpoint has them."""
        with self._lock:
            record = self.by_id[trial_id]
            if record.epochs <= epoch:
                return False
            record.go_back(epoch, scores, scores.score(self.scoring))
            record.gpu_index = record.gpu_index if epoch else None
            further = self._further[trial_id] = {n: v for n, v in self._further.get(trial_id, {}).items() if n <= epoch}
            record.further = further.get(record.score_epoch or 0, self.scoring.further_values({}))
            self._curves.setdefault(trial_id, Curve()).cut(epoch)
            return True

    def change(self, trial_id: str, change: Change) -> bool:
        """Note that a trial took over another one's parameters; return False if it only repeats that."""
        with self._lock:
            changes = self.by_id[trial_id].changes
            if changes and changes[-1].epoch >= change.epoch:
                return False
            changes.append(change)
            return True

    def spend(self, seconds: Mapping[str, float]) -> None:
        """Add a worker's seconds by activity."""
        with self._lock:
            for activity, more in seconds.items():
                self.spent[activity] = self.spent.get(activity, 0.0) + more

    def hold(self, holder: str, trial_ids: Sequence[str] = (), gpu_share: float = 1.0) -> None:
        """Note that a Tune trial, of these trials, begins to hold its share of a GPU."""
        with self._lock:
            now = time.monotonic()
            self.gpus.hold(holder, gpu_share)
            self._pace.release(holder, now)  # it was paused meanwhile
            self._pace.hold(holder, trial_ids, now)

    def report(
        self,
        holder: str,
        widths: Sequence[float],
        train_s: float | None,
        gpu_index: int | None,
        samples_per_s: float | None = None,
    ) -> None:
        """Note that a Tune trial has reported. widths: number of trials that trained in each epoch of the report.
        train_s: seconds of training of these epochs; samples_per_s: in them; None if unknown."""
        with self._lock:
            self.gpus.locate(holder, gpu_index, samples_per_s)
            self._pace.add(holder, time.monotonic(), widths, train_s)

    def prepare(self, holder: str, seconds: float) -> None:
        """Note seconds in which a Tune trial has made an array and chosen its width."""
        with self._lock:
            self._pace.add(holder, time.monotonic(), (), None, seconds)

    def release(self, holder: str) -> None:
        """Note that a Tune trial has given its share of a GPU back."""
        with self._lock:
            self.gpus.release(holder)
            self._pace.release(holder, time.monotonic())

    def charge(self, holder: str, trial_ids: Sequence[str], gpu_index: int | None, gpu_share: float) -> None:
        """Charge the RGU-hours since the holder's last charge, in equal parts to its trials that have not ended."""
        with self._lock:
            hours = self.gpus.charge(holder, gpu_index, gpu_share)
            if hours is None:
                return
            running = [record for name in trial_ids if not (record := self.by_id[name]).ended]
            for record in running:
                record.rgu_hours = (record.rgu_hours or 0.0) + hours / len(running)

    def rgu_hours(self) -> float | None:
        """Return the RGU-hours of all trials together; None if no GPU's worth is known."""
        with self._lock:
            hours = [record.rgu_hours for record in self.by_id.values() if record.rgu_hours is not None]
        return sum(hours) if hours else None

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
        """Return the error in a line if trials of at least so many sets have ended, all by the same type of error."""
        with self._lock:
            ended = [record for record in self.by_id.values() if record.ended]
        num_sets = len({record.trial.set_id for record in ended})  # the repeats of one set fail together
        lines = [error_line(record.error or "") for record in ended if record.status == "failed"]
        alike = len(set(map(kind, lines))) == 1
        return lines[0] if alike and len(lines) == len(ended) and num_sets >= least else None

    def failures(self) -> list[str]:
        """Return the error of each failed trial in a line."""
        with self._lock:
            errors = [record.error for record in self.by_id.values() if record.status == "failed" and record.error]
        return [error_line(error) for error in errors]

    def interrupt(self, told: Callable[[TrialRecord], None]) -> bool:
        """Mark running trials as interrupted, and pass each to `told`; return whether the sweep is short of trials."""
        with self._lock:
            running = [record for record in self.by_id.values() if not record.ended]
            for record in running:
                record.status = "interrupted"
                told(record)
            self.out_of_time = self.out_of_time and self.is_short
            return self.is_short

    @property
    def is_short(self) -> bool:
        """Whether trials are left to run: some have not ended, or not begun."""
        with self._lock:
            return any(not record.ended for record in self.by_id.values()) or len(self.by_id) < self.num_trials

    def ranked(self) -> list[TrialRecord]:
        """Return the trials with a score, the best first, diverged ones last; failed ones are left out."""
        with self._lock:
            scored = [r for r in self.by_id.values() if r.score is not None and r.status != "failed"]
        return sorted(scored, key=self._rank)

    def front(self) -> list[TrialRecord]:
        """Return the trials of the Pareto front, the best in the first metric first; empty with a single metric."""
        if not self.scoring.further:
            return []
        candidates = [(record, values) for record in self.ranked() if (values := record.objectives) is not None]
        maximize = [self.scoring.maximize, *(more for _, more in self.scoring.further)]
        return [candidates[place][0] for place in front([values for _, values in candidates], maximize)]

    def count(self, *outcomes: Status | Literal["diverged"]) -> int:
        """Count the trials of these outcomes; those that diverged are no finished ones."""
        with self._lock:
            return sum(record.outcome in outcomes for record in self.by_id.values())

    def snapshot(self) -> Snapshot:
        """Return the state of the sweep at this moment."""
        with self._lock:
            elapsed_s = time.monotonic() - self._started
            counts = Counter(record.outcome for record in self.by_id.values())
            leaders = self._leaders()
            return Snapshot(
                elapsed_s=elapsed_s,
                num_trials=self.num_trials,
                running=counts["running"],
                finished=counts["finished"],
                stopped=counts["stopped"],
                failed=counts["failed"],
                best=leaders[0].record if leaders else None,
                samples_per_s={device.index: self._rate(device.index) for device in self.gpus.devices},
                time_left_s=self._time_left(),
                diverged=counts["diverged"],
                leaders=leaders,
                held=self.gpus.shares(),
            )

    def _leaders(self) -> list[Leader]:
        if not self.repetition.is_single:
            return [
                Leader(each.best, self._curve(each.best), each)
                for each in self.sets()[:LEADERS]
                if each.mean is not None and each.best is not None
            ]
        scored = [r for r in self.by_id.values() if r.score is not None and r.status != "failed" and not r.diverged]
        return [Leader(record, self._curve(record)) for record in heapq.nsmallest(LEADERS, scored, key=self._rank)]

    def _curve(self, record: TrialRecord) -> Sequence[float]:
        curve = self._curves.get(record.trial.trial_id)
        return curve.points() if curve is not None else []

    def _rank(self, record: TrialRecord) -> tuple[bool, float, float, Order]:
        """Return the key that sorts trials with a score, the best first, and diverged ones last."""
        score_rank = rank(record.score or 0.0, record.validation_loss, maximize=self.scoring.maximize)
        return record.diverged, *score_rank, Trial.order(record.trial.trial_id)

    def _rate(self, gpu_index: int) -> float | None:
        """Return the throughput of a GPU by the last reports from it; None without any. While some trials have not
        reported yet, as short ones do at their end alone, what it has trained in the last seconds counts if it is
        more."""
        running = [record for record in self.by_id.values() if record.status == "running"]
        rate, recent = self.gpus.rate(gpu_index) if running else None, self.gpus.recent_rate(gpu_index)
        if recent is not None and any(record.samples_per_s is None for record in running):
            return max(rate or 0.0, recent)
        return rate

    def budget_left_s(self) -> float | None:
        """Return the seconds left of the time budget; None without one."""
        return None if self.time_budget_s is None else max(0.0, self.time_budget_s - command_age_s())

    def _time_left(self) -> float | None:
        """Return the seconds left, of the trials or of the time budget; None while they are not known."""
        limits_s = [left_s for left_s in (self._trials_left_s(), self.budget_left_s()) if left_s is not None]
        return min(limits_s, default=None)

    def _trials_left_s(self) -> float | None:
        """Return the seconds that the trials still take, estimated at most once a second; None while not known."""
        now = time.monotonic()
        if sum(record.ended for record in self.by_id.values()) >= self.num_trials:
            return 0.0
        if self._left is None or not 0 < now - self._left[0] < ESTIMATE_S:
            self._left = now, self._pace.left_s(now, self.by_id, self.num_trials, self.saved)
        at, left_s = self._left
        return left_s and max(0.0, left_s - (now - at))

    def gpu_throughput(self, wall_s: float) -> dict[int, float | None]:
        """Return the training samples/s of each GPU over the whole run; None for a GPU without samples."""
        with self._lock:
            return self.gpus.throughput(wall_s)

    def state(self) -> dict[str, Any]:
        """Return the state that a resumed sweep starts from; picklable."""
        with self._lock:
            return {
                "by_id": dict(self.by_id),
                "gpu_samples": dict(self.gpus.samples),
                "gpu_readings": dict(self.gpus.readings),
                "retries": self.retries,
                "out_of_memory": self.out_of_memory,
                "elapsed_s": time.monotonic() - self._started,
                "curves": dict(self._curves),
                "further": {name: dict(values) for name, values in self._further.items()},
            }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from the result of `state`; the time in between does not count."""
        with self._lock:
            self.by_id, self.gpus.samples = state["by_id"], state["gpu_samples"]
            self.gpus.readings = state["gpu_readings"]
            self.retries, self.out_of_memory = state["retries"], state["out_of_memory"]
            self._started = time.monotonic() - state["elapsed_s"]  # the time between the two does not count
            self._curves, self._further = state["curves"], state["further"]
