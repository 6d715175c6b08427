"""The time left of a sweep, from its schedule and from what its Tune trials have taken so far. Without a clock of its
own, so that a test plays any sweep through it.

pace.hold("a1", ("t0000",), now)           a Tune trial has got its slot
pace.add("a1", now, [1, 1], 0.8)           two epochs of one trial, reported together, and their seconds of training
pace.release("a1", now)                    its slot is free again
pace.left_s(now, records, num_trials)
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from raygpu.planning.makespan import makespan_s
from raygpu.planning.schedule import WORKER_S, Schedule
from raygpu.planning.trial_survival import Survival
from raygpu.records.paces import Holder, Paces
from raygpu.search.repeats import number_of
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import Trial

ESTIMATED_FROM_S = 1.5
"""Seconds of training before which an estimate of the time left counts as early."""
EARLY_SHARE = 1 / 12
"""Share of the estimated whole that has to be done before an early estimate is shown."""
GOLDEN = (math.sqrt(5) - 1) / 2
"""Golden ratio: the fractional parts of its multiples are a low-discrepancy sequence in the interval from 0 to 1."""
ROUNDS = ((40, 24), (200, 8))
"""Number of simulations that are averaged, for at most this number of jobs; one for more."""
SHORTEST_S = 0.05
"""Seconds that a running job still takes at least."""


class SweepPace:
    """Time that a sweep's Tune trials have taken so far, and that the others will take."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.holders: dict[str, Holder] = {}
        self._ended: list[Holder] = []
        self._between: list[float] = []
        """Seconds beside the epochs of each Tune trial whose slot had a worker already."""
        self._starts: list[float] = []
        """Seconds from getting a slot to the first epoch, where the worker had to start."""
        self._freed: deque[float] = deque()
        """Moments at which slots became free, until the next Tune trial takes them."""
        self._last_freed = 0.0
        self._at_once: deque[int] = deque(maxlen=2 * schedule.slots + 2)
        """Number of Tune trials in their slots whenever another one had got its slot."""
        self._training_since: float | None = None
        self._names: list[str] = []

    def hold(self, holder: str, trial_ids: Sequence[str], now: float) -> None:
        """Note that a Tune trial has got its slot."""
        since = self._freed.popleft() if self._freed else None
        if since is not None and self.schedule.generations:  # the slot was idle until the generation had ended
            since = self._last_freed
        kind = self.schedule.kinds.get(trial_ids[0], -1) if trial_ids else -1
        self._at_once.append(len(self.holders) + 1)
        self.holders[holder] = Holder(tuple(trial_ids), now if since is None else since, kind, since is None)

    def add(
        self, holder: str, now: float, widths: Sequence[float], train_s: float | None, prepared_s: float = 0.0
    ) -> None:
        """Note a report. widths: trials that trained at once, for each epoch of the array. train_s: seconds of training
        of these epochs; None if unknown. prepared_s: seconds in which the array was made."""
        slot_holder = self.holders.get(holder)
        if slot_holder is None:
            return
        slot_holder.prepared_s += prepared_s
        if not widths:
            return
        if slot_holder.heard is None:
            slot_holder.opening = (train_s, len(widths), fmean(widths))
            trained_s = train_s if train_s is not None else now - slot_holder.began
            since = now - trained_s
            if self._training_since is None:
                self._training_since = since
            if slot_holder.is_first:
                self._starts.append(max(0.0, since - slot_holder.began))
        else:
            for width in widths:
                span = slot_holder.spans.setdefault(max(1, round(width)), [0.0, 0.0])
                span[0] += (now - slot_holder.heard) / len(widths)
                span[1] += 1
        slot_holder.heard = now

    def release(self, holder: str, now: float) -> None:
        """Note that a Tune trial has given its slot back."""
        slot_holder = self.holders.pop(holder, None)
        if slot_holder is None:
            return
        self._freed.append(now)
        self._last_freed = now
        if slot_holder.opening is None:
            return
        train_s, epochs, width = slot_holder.opening
        spans_s, later = (sum(part) for part in zip((0.0, 0.0), *slot_holder.spans.values(), strict=True))
        if train_s is None and later:  # a function: the first report's epochs took as long as the later ones
            train_s = epochs * spans_s / later
        elif train_s is None:  # it has reported at its end alone: all of it is its epochs
            beside_s = WORKER_S if slot_holder.is_first else self._between_s
            train_s = now - slot_holder.began - min(beside_s, (now - slot_holder.began) / 2)
            slot_holder.opening = (train_s, epochs, width)
        if not slot_holder.is_first:
            self._between.append(max(0.0, now - slot_holder.began - train_s - spans_s))
        elif slot_holder.prepared_s:
            self._between.append(slot_holder.prepared_s)
        self._ended.append(slot_holder)

    def left_s(
        self, now: float, records: Mapping[str, TrialRecord], num_trials: int, saved: Collection[str] = ()
    ) -> float | None:
        """Return the seconds left of a sweep whose trials have not all ended; None while little is known.

        num_trials: without those that are left out. saved: ids of the trials that are left out.
        """
        survival = self._survival(records)
        paces = Paces.of([*self._ended, *self.holders.values()], self.schedule.fixed, self.schedule.sizes)
        if survival is None or paces is None or self._training_since is None:
            return None
        outlook = _Outlook(survival, paces, self._between_s, fmean(self._starts) if self._starts else 0.0)
        queue = self._queue(records, num_trials, saved)
        jobs = sum(map(len, queue)) + len(self.holders)
        rounds = next((number for most, number in ROUNDS if jobs <= most), 1)
        left_s = fmean(
            makespan_s(
                [outlook.running_s(holder, records, now, number) for holder in list(self.holders.values())],
                [[outlook.waiting_s(job, records, self._kind(job), number) for job in block] for block in queue],
                self._places,
                self.schedule.slowdown,
            )
            for number in range(rounds)
        )
        spent_s = now - self._training_since
        heard = sum(holder.heard is not None for holder in self.holders.values()) + len(self._ended)
        early = spent_s < ESTIMATED_FROM_S or heard < min(self.schedule.slots, len(self.holders)) / 2
        return None if early and spent_s < EARLY_SHARE * (spent_s + left_s) else left_s

    @property
    def _places(self) -> int:
        """Number of Tune trials at once: the plan's, or as many as there were lately, if those have always been
        fewer."""
        is_full = len(self._at_once) == self._at_once.maxlen
        return max(self._at_once) if is_full else self.schedule.slots

    @property
    def _between_s(self) -> float:
        return fmean([*self._between, self.schedule.between_s])

    def _kind(self, job: tuple[str, ...]) -> int:
        return self.schedule.kinds.get(job[0], -1)

    def _survival(self, records: Mapping[str, TrialRecord]) -> Survival | None:
        ended: Counter[int] = Counter()
        running: Counter[int] = Counter()
        for record in records.values():
            (ended if record.ended else running)[record.epochs] += 1
        return Survival.estimate(self.schedule.epochs, ended, running, self.schedule.stops)

    def _queue(
        self, records: Mapping[str, TrialRecord], num_trials: int, saved: Collection[str]
    ) -> list[list[tuple[str, ...]]]:
        """Return the waiting Tune trials, each by its trials, in blocks that begin one after the other's end."""
        running_names = {name for holder in self.holders.values() for name in holder.trial_ids}
        planned, per_set = num_trials + len(saved), self.schedule.per_set
        while len(self._names) < planned:
            set_number, number = divmod(len(self._names), per_set)
            name = Trial.name(set_number)
            self._names.append(name if per_set == 1 else Trial.repeat_name(name, number))
        waiting = [
            name
            for name in self._names[:planned]
            if name not in running_names and name not in saved and self._may_run(name, records)
        ]
        if (generations := self.schedule.generations) is None:
            return [self._jobs(waiting, self.schedule.arrays)]
        blocks: dict[int, list[str]] = {}
        for name in waiting:
            blocks.setdefault(generations.number(_set_number(name)), []).append(name)
        under_way = max((generations.number(_set_number(name)) for name in running_names), default=-1)
        job_blocks = [self._jobs(names, ()) for _, names in sorted(blocks.items())]
        return [[], *job_blocks] if under_way >= 0 and under_way not in blocks else job_blocks

    def _may_run(self, name: str, records: Mapping[str, TrialRecord]) -> bool:
        """Return whether a trial that has no slot is expected to run: it has not ended, nor will its set's first trial
        be stopped."""
        if (record := records.get(name)) is not None:
            return not record.ended
        first = records.get(Trial.repeat_name(name.partition("-")[0], 0))
        undecided = number_of(name) > 0 and (first is None or not first.ended)
        return not undecided or (_set_number(name) * GOLDEN) % 1 < self.schedule.surviving

    def _jobs(self, waiting: list[str], arrays: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
        waiting_names = set(waiting)
        jobs = [members for array in arrays if (members := tuple(name for name in array if name in waiting_names))]
        if arrays:
            planned = {name for job in jobs for name in job}
            return [*jobs, *((name,) for name in waiting if name not in planned)]
        seen = [*self._ended, *self.holders.values()]
        width = max(1, round(fmean(len(holder.trial_ids) for holder in seen))) if seen else 1
        return [tuple(waiting[at : at + width]) for at in range(0, len(waiting), width)]


def _set_number(name: str) -> int:
    """Return the number of a trial's set in the search."""
    return int(name.partition("-")[0][1:])


def _part(name: str, simulation: int) -> float:
    """Return a trial's number from 0 to 1 in a simulation."""
    return (_set_number(name) * GOLDEN + number_of(name) * GOLDEN**3 + simulation * GOLDEN**2) % 1


@dataclass(frozen=True, slots=True)
class _Outlook:
    """The time that Tune trials are expected to take."""

    survival: Survival
    paces: Paces
    between_s: float
    start_s: float

    def waiting_s(self, job: tuple[str, ...], records: Mapping[str, TrialRecord], kind: int, number: int) -> float:
        """Return the seconds of a Tune trial that waits. number: of the simulation."""
        after = min((record.epochs for name in job if (record := records.get(name)) is not None), default=0)
        if len(job) > 1:
            return self.between_s + self._array_s(len(job), after, self.paces.of_kind(kind).mean)
        part = _part(job[0], number)
        pace = self.paces.of_kind(kind).draw((part * 7 + number * GOLDEN) % 1)
        return self.between_s + self.survival.draw(part, after) * self.paces.epoch_s(pace, 1)

    def running_s(self, held: Holder, records: Mapping[str, TrialRecord], now: float, number: int) -> float:
        """Return the seconds that a Tune trial in its slot still takes."""
        rest = [record for name in held.trial_ids if (record := records.get(name)) is not None and not record.ended]
        if held.heard is None:
            whole_s = self.waiting_s(held.trial_ids, records, held.kind, number)
            whole_s += self.start_s - self.between_s if held.is_first else 0.0
            return max(SHORTEST_S, whole_s - (now - held.began))
        pace = self.paces.own.get(id(held), self.paces.of_kind(held.kind).mean)
        credit_s = now - held.heard
        if len(held.trial_ids) == 1:
            if not rest or self.survival.share(rest[0].epochs, rest[0].epochs) <= 0:
                return SHORTEST_S
            part = _part(held.trial_ids[0], number)
            seconds = self.survival.draw(part, rest[0].epochs) * self.paces.epoch_s(pace, 1)
            return max(SHORTEST_S, seconds - credit_s)
        begun = [record.epochs for record in rest if record.epochs]
        seconds = self._array_s(len(begun), max(begun), pace) - credit_s if begun else 0.0
        others = len(rest) - len(begun)  # of an array that memory cuts into several
        at_once = max(1, len(held.trial_ids) - others)
        seconds += math.ceil(others / at_once) * self._array_s(min(others, at_once), 0, pace) if others else 0.0
        return max(SHORTEST_S, seconds)

    def _array_s(self, width: int, after: int, pace: float) -> float:
        """Return the seconds of an array's epochs while its trials become fewer."""
        seconds = 0.0
        for epoch in range(after, len(self.survival.passed)):
            share = self.survival.share(epoch, after)
            any_left = 1 - (1 - share) ** width
            if any_left <= 0:
                break
            seconds += any_left * self.paces.epoch_s(pace, max(1.0, width * share))
        return seconds
