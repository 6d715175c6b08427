"""Sweeps that are played in a time of their own: slots, jobs of known length, and a report a second."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from raygpu.planning.schedule import Schedule
from raygpu.records.sweep_pace import SweepPace
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import Trial


@dataclass(slots=True)
class Job:
    """A Tune trial: the epochs of each of its trials, and the seconds of an epoch by the trials that are left."""

    epochs: dict[str, int]
    epoch_s: Callable[[int], float]
    reported: bool = True
    """Whether an epoch's training time is in its result."""


@dataclass(slots=True)
class Played:
    """What the sweep told of its time left, and when it ended."""

    told: list[tuple[float, float | None]] = field(default_factory=list)
    """Moments, and the seconds left as told then."""
    began: float = 0.0
    """Moment of the first place's first epoch."""
    ended: float = 0.0

    def wrong(
        self, since: float = 0.25, part: float = 1 / 3, least_s: float = 2.0
    ) -> list[tuple[float, float, float | None]]:
        """Return the moments from this share of the way on at which the time left was off by more than the part, and by
        more than `least_s`: the share of the way, the true seconds and those that were told."""
        whole_s, found = self.ended - self.began, []
        for now, left_s in self.told:
            way, true_s = (now - self.began) / whole_s, self.ended - now
            if way >= since and (left_s is None or abs(left_s - true_s) > max(part * true_s, least_s)):
                found.append((round(way, 2), round(true_s, 1), left_s and round(left_s, 1)))
        return found


def trial_names(count: int, first: int = 0) -> list[str]:
    return [Trial.name(index) for index in range(first, first + count)]


def alone(name: str, epochs: int, epoch_s: float, *, reported: bool = True) -> Job:
    return Job({name: epochs}, lambda left: epoch_s, reported)


def play(
    jobs: Sequence[Job], schedule: Schedule, *, start_s: float = 4.0, between_s: float = 0.3, full: int | None = None
) -> Played:
    """Play a sweep: each place's worker starts once, and each job waits for a free place. full: the last epoch of a
    trial that was not stopped; by default the schedule's."""
    pace, records, played = SweepPace(schedule), dict[str, TrialRecord](), Played()
    num_trials = sum(len(job.epochs) for job in jobs)
    events: list[tuple[float, int, str, int]] = [(float(second), -1, "look", -1) for second in range(1, 100_000)]
    free = [(0.0, True)] * schedule.slots
    waiting, running, clock, serial = list(range(len(jobs))), set[int](), 0.0, 0
    reports = {}

    def generation(number: int) -> int:
        first = int(min(jobs[number].epochs)[1:])
        return schedule.generations.number(first) if schedule.generations is not None else 0

    def begin() -> None:
        nonlocal serial
        while free and waiting and not any(generation(other) < generation(waiting[0]) for other in running):
            number = waiting.pop(0)
            _, is_first = free.pop(0)
            running.add(number)
            pace.hold(str(number), tuple(jobs[number].epochs), clock)
            for name in jobs[number].epochs:
                records[name] = TrialRecord(Trial(name, 0, {}), "running")
            reports[number] = _reports(jobs[number])
            at = clock + (start_s if is_first else between_s)
            if is_first and not played.began:
                played.began = at
            serial += 1
            _next(number, at)

    def _next(number: int, at: float) -> None:
        nonlocal serial
        seconds, widths, ended = next(reports[number])
        serial += 1
        heapq.heappush(events, (at + seconds, serial, "report", number))
        pending[number] = (seconds, widths, ended)

    pending: dict[int, tuple[float, list[int], dict[str, int]]] = {}
    heapq.heapify(events)
    begin()
    while running:
        clock, _, what, number = heapq.heappop(events)
        if what == "look":
            played.told.append((clock, pace.left_s(clock, records, num_trials)))
            continue
        seconds, widths, reached = pending[number]
        job = jobs[number]
        for name, epochs in reached.items():
            records[name].epochs = epochs
        pace.add(str(number), clock, [float(width) for width in widths], seconds if job.reported else None)
        for name in reached:
            if records[name].epochs >= job.epochs[name] and not records[name].ended:
                records[name].status = "finished" if job.epochs[name] == (full or schedule.epochs) else "stopped"
        if all(records[name].ended for name in job.epochs):
            pace.release(str(number), clock)
            running.discard(number)
            free.append((clock, False))
            begin()
        else:
            _next(number, clock)
    played.ended = clock
    return played


def _reports(job: Job) -> Iterator[tuple[float, list[int], dict[str, int]]]:
    """Yield the seconds, the widths of the epochs, and each trial's epochs, about once a second."""
    seconds, widths, epoch = 0.0, list[int](), 0
    reached: dict[str, int] = {}
    while left := [name for name, epochs in job.epochs.items() if epochs > epoch]:
        epoch += 1
        seconds += job.epoch_s(len(left))
        widths.append(len(left))
        reached |= dict.fromkeys(left, epoch)
        if seconds >= 1 or not any(epochs > epoch for epochs in job.epochs.values()):
            yield seconds, widths, reached
            seconds, widths, reached = 0.0, [], {}


def halved(names: Sequence[str], grace: int, reduction: int, most: int) -> dict[str, int]:
    """Return the epochs of trials of which one in `reduction` survives each rung."""
    rungs, rung = [], grace
    while rung < most:
        rungs.append(rung)
        rung *= reduction
    return {
        name: next((at for power, at in enumerate(rungs, 1) if index % reduction**power), most)
        for index, name in enumerate(names)
    }


def with_jobs(schedule: Schedule, jobs: Sequence[Job]) -> Schedule:
    """Return the schedule with the arrays that these jobs are."""
    return replace(schedule, arrays=[tuple(job.epochs) for job in jobs])
