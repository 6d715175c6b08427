"""Benchmark the throughput of growing numbers of trainings on a device, for each way of sharing, in short windows.

    benchmark = ConcurrencyBenchmark(probe, ("process", "fused"), Repetitions(1.0, rounds=3), most=34)
    benchmark.run()                 # benchmark.points, benchmark.notes

At each number of trainings all ways take turns, round by round, and one training alone has its turn in each round: the
machine's other load is the same for all, and a gain is a ratio of neighbours in time. Rounds that differ much are
followed by more. A point that contradicts itself or its neighbours is measured again, and is in doubt if it still does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from raygpu.config.sections import WAYS, Way
from raygpu.devices import nvml
from raygpu.devices.host import available_memory_gib
from raygpu.devices.limits import UNMEASURED_CONTEXT_GIB
from raygpu.devices.mps import Access
from raygpu.engines.profiling.measured_points import Measured
from raygpu.engines.profiling.probe_actor import Fault, Taken
from raygpu.engines.profiling.probe_workers import ProbeProcesses, answers
from raygpu.engines.profiling.windows import APART, Windows
from raygpu.engines.profiling.worker_pool import Pools
from raygpu.engines.profiling.workload import Repetitions
from raygpu.errors import error_line
from raygpu.planning.confidence import spread_text
from raygpu.planning.plausibility import contradictions, is_alone, mark_doubtful, normalise
from raygpu.planning.profile_coverage import LEAST, MOST, fibonacci
from raygpu.planning.profiles import NOT_COMPILED, NOT_TRIED, Point, rises

HOPELESS = 0.4
"""Share of the best gain below which an array's step is not compiled: compiling seldom more than doubles its speed."""
THREAD_ROUNDS = 3
"""Number of windows of a single training with one CPU thread, and with all, to choose the faster setting."""
MARGIN = 0.9
"""Share of the free memory that the probe's processes may fill."""


class ConcurrencyBenchmark:
    """Benchmark at growing numbers of trainings, until more trainings gain nothing or memory ends.

    most: largest number of trainings. mps: MPS daemon of the way `mps`. numbers: measure exactly these numbers, whether
    they gain or not. say: called with lines on the progress.
    """

    def __init__(
        self,
        probe: ProbeProcesses,
        ways: Sequence[Way],
        repetitions: Repetitions,
        *,
        most: int,
        mps: Access | None = None,
        numbers: Sequence[int] | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.probe = probe
        self.repetitions = repetitions
        self.most = most
        self.mps = mps
        self.numbers = numbers
        self.say = say
        self.notes: list[str] = []
        self._ways = list(ways)
        """Ways to measure at the next number of trainings."""
        self._pools = Pools(probe, mps)
        self._alone: Measured | None = None
        self._windows = Windows(probe, repetitions.window_s)
        self._measured: list[Point] = []
        """Points as they were measured, without a common reference."""
        self._references: list[float] = []
        """Samples/s of the single training in all rounds."""
        self._free_gib: float | None = None
        """Free device memory before the first training."""
        self._again: dict[tuple[Way, int], int] = {}
        """Number of repeated measurements of each point."""

    @property
    def points(self) -> list[Point]:
        """Return all points so far, with gains over the same single training and with doubtful points marked."""
        if not self._references:
            return list(self._measured)
        alone = median(self._references)
        return mark_doubtful([normalise(point, alone) for point in self._measured], alone)

    def begin(self) -> bool:
        """Start the single training that all others are compared with; return False if it fails."""
        self._free_gib = self._free()[1] if self.probe.local else None
        if "fused" in self._ways:
            self._pools.take("fused", 1, self.probe.num_cpus)  # starts meanwhile
        self._alone = alone = self._ready("process", 1)
        self._pools.alone = alone.actors
        if alone.fault is not None:
            self._keep(alone)
            return False
        self._choose_threads(alone)
        if alone.fault is not None:
            self._keep(alone)
            return False
        return True

    def run(self) -> None:
        """Measure 1, 2, 3, 5, 8 ... trainings at once, each way while it gains; or the requested numbers."""
        if not self.begin():
            return
        for n in fibonacci() if self.numbers is None else sorted({1, *self.numbers}):
            self._ways = [way for way in self._ways if n < LEAST.get(way, 1) or self._goes_on(way, n)]
            if not self.measurable or not self._ways or n > self.most:
                break
            self._pools.end([way for way in self._pools.ways if way not in self._ways])
            ways = [way for way in self._ways if n >= LEAST.get(way, 1)]
            if n == 1:  # one training alone is a point whether packed processes are asked for or not
                ways = ["process", *(way for way in ways if way != "process")]
            self.measure(dict.fromkeys(ways, n))

    @property
    def measurable(self) -> bool:
        """Return whether the single training, the reference for all others, still runs."""
        return self._alone is not None and self._alone.fault is None

    def measure(self, numbers: Mapping[Way, int]) -> None:
        """Measure one point of each way at its number of trainings.

        The ways take turns, or follow each other if memory does not hold the processes of all at once.
        """
        if len(numbers) > 1 and self._fit_together(numbers):
            turns = [self._turn(way, n) for way, n in numbers.items()]
            if not any(turn.fault is not None and turn.fault.out_of_memory for turn in turns):
                self._measure(turns)
                self._measure_again(numbers, apart=False)
                return
            self._pools.end([*numbers])
        for way, n in numbers.items():
            self._pools.end([other for other in self._pools.ways if other != way])
            self._measure([self._turn(way, n)])
        self._measure_again(numbers, apart=len(numbers) > 1)

    def _measure_again(self, ways: Iterable[Way], *, apart: bool) -> None:
        """Measure contradicted points of these ways again, until none is left or each was repeated `again` times.

        apart: whether memory holds the processes of one way only.
        """
        while self.measurable and self._references:
            points = self.points
            doubts = contradictions([replace(point, doubt=None) for point in points], median(self._references))
            suspects = {(points[place].way, points[place].n): why for place, why in doubts.items()
                        if points[place].way in ways and not points[place].compiled}  # fmt: skip
            suspects = {key: why for key, why in suspects.items() if self._again.get(key, 0) < self.repetitions.again}
            if not suspects:
                return
            for (way, n), why in suspects.items():
                self._again[way, n] = self._again.get((way, n), 0) + 1
                self.say(f"{way}, {n} at once is measured again: {why}")
                if apart:
                    self._pools.end([other for other in self._pools.ways if other != way])
                self._measure([self._turn(way, n)])

    def _turn(self, way: Way, n: int) -> Measured:
        assert self._alone is not None
        return self._alone if (way, n) == ("process", 1) else self._ready(way, n)

    def compile(self) -> None:
        """Measure the fused array at its best width again with a compiled step; a note says why if this is skipped."""
        eager = [p for p in self.points if p.way == "fused" and p.gain is not None and p.doubt is None]
        if not eager and any(p.way == "fused" and p.doubt is not None for p in self.points):
            self.notes.append(f"fused: {NOT_COMPILED}: what was measured of the array is in doubt")
        if not eager or self._alone is None or self._alone.fault is not None:
            return
        best = max(eager, key=lambda p: p.gain or 0.0)
        if (best.gain or 0.0) < HOPELESS * max(p.gain or 0.0 for p in self.points):
            self.notes.append(f"fused: {NOT_COMPILED}: it is too far behind")
            return
        self.say(f"fused, {best.n} at once: its step is being compiled")
        measured = self._ready("fused", best.n)
        answer = measured.fault or answers([actor.compile.remote() for actor in measured.actors])
        if isinstance(answer, Fault):
            self.notes.append(f"fused: {NOT_COMPILED}: {error_line(answer.text)}")
            return
        measured.compiled, measured.start_s = True, (measured.start_s or 0.0) + answer[0]
        self._measure([measured])

    def _goes_on(self, way: Way, n: int) -> bool:
        points = self._of(way)
        gains = rises(points) if self.numbers is None else not any(p.fault for p in points)
        if n > MOST.get(way, n) or not gains:
            return False
        short = self._short(way, n, points)
        if short is not None:
            self.notes.append(f"{way}: {n} {NOT_TRIED}: {short}")
        return short is None

    def _short(self, way: Way, n: int, points: Sequence[Point]) -> str | None:
        """Return a line on the memory that n trainings would lack, by the last point's memory; None if it is enough."""
        if not points or not self.probe.local:
            return None
        last = _last(points)
        host_gib, device_gib = self._free()
        others = [_last(points_of_way) for other in WAYS if other != way and (points_of_way := self._of(other))]
        if last.host_gib is not None:
            host_gib += sum(self._pools.given_back(p) * (p.host_gib or 0.0) for p in others)
            if (n - self._pools.held(last)) * last.host_gib > MARGIN * host_gib:
                return f"{last.host_gib:.2f} GiB of host memory each, and {host_gib:.1f} GiB are free for more"
        # An array has no context for each member: what it needs is seen when it runs out.
        if device_gib is not None and last.device_gib is not None and way != "fused":
            device_gib += sum(self._pools.given_back(p) * (p.device_gib or 0.0) for p in others)
            if (n - self._pools.held(last)) * last.device_gib > MARGIN * device_gib:
                return f"{last.device_gib:.2f} GiB of device memory each, and {device_gib:.1f} GiB are free for more"
        return None

    def _fit_together(self, numbers: Mapping[Way, int]) -> bool:
        """Return whether the processes of all these ways are likely to fit in memory at the same time."""
        if not self.probe.local:
            return True
        lasts = {way: _last(points_of_way) for way in numbers if (points_of_way := self._of(way))}
        host_gib, device_gib = self._free()
        more = {way: numbers[way] - self._pools.held(p) for way, p in lasts.items()}
        host_more = sum(more[way] * (p.host_gib or 0.0) for way, p in lasts.items())
        device_more = sum(more[way] * (p.device_gib or 0.0) for way, p in lasts.items())
        return host_more <= MARGIN * host_gib and (device_gib is None or device_more <= MARGIN * device_gib)

    def _free(self) -> tuple[float, float | None]:
        """Return the free memory of the host and of the device in GiB; None for a simulated device."""
        memory = nvml.memory(self.probe.device.uuid) if self.probe.device.uuid else None
        return available_memory_gib(), memory.free_gib if memory else None

    def _of(self, way: Way) -> list[Point]:
        return [p for p in self.points if p.way == way]

    # Getting ready

    def _ready(self, way: Way, n: int) -> Measured:
        """Make n trainings and run their first steps; processes of a smaller number are reused."""
        started = time.monotonic()
        threads = self._threads(way, n)
        actors, new = self._pools.take(way, n, threads)
        copies = self.probe.copies(n)
        parts = [[trial] for trial in copies[n - len(new) :]] if way in ("process", "mps") else [copies]
        memory_gib = self.probe.device.memory_gib
        costs = self.probe.make(way, new, parts, threads, memory_gib and MARGIN * memory_gib / n) if new else []
        # Processes of fewer at once go on: their start belongs to what n take.
        before_s = max((p.start_s or 0.0 for p in self._of(way)), default=0.0) if len(new) < len(actors) else 0.0
        measured = Measured(way, n, threads, actors, start_s=before_s + time.monotonic() - started)
        if isinstance(costs, Fault):
            measured.fault = costs
            return measured
        evaluations = [answer.evaluation_s for answer in costs] or [p.evaluation_s for p in self.points if p.way == way]
        measured.evaluation_s = evaluations[-1]
        alone_s = self._alone.step_s if self._alone is not None else 0.0
        measured.step_s = max([alone_s, *(answer.step_s for answer in costs)])
        return measured

    def _threads(self, way: Way, n: int) -> int:
        """Return the CPU threads of each training; of the whole process for an array or TensorFlow's shared pool."""
        shared = way == "fused" or (way in ("split", "threads") and self.probe.source.kind == "keras")
        return self.probe.num_cpus if shared else max(1, self.probe.num_cpus // n)

    def _choose_threads(self, alone: Measured) -> None:
        """Let the single training use all CPU threads or one, whichever is faster."""
        if self.probe.source.kind != "torch" or self.probe.num_cpus == 1:
            return
        rates: dict[int, list[float]] = {1: [], self.probe.num_cpus: []}
        for _ in range(THREAD_ROUNDS):
            for threads, round_rates in rates.items():
                alone.threads = threads
                round_rates.append(self._window(alone))
        alone.threads = max(rates, key=lambda threads: median(rates[threads]))
        alone.readings.clear()

    # Measuring

    def _measure(self, turns: Sequence[Measured]) -> None:
        """Measure in rounds of one window each, every other round in reverse; the single training has a turn in each.

        Rounds that differ much are followed by more, unless a single round is asked for.
        """
        alone = self._alone
        assert alone is not None
        rounds = self.repetitions.rounds
        most = self.repetitions.patience * rounds if rounds > 1 else 1
        for number in range(most):
            going = [turn for turn in turns if turn.fault is None and (number < rounds or not turn.settled)]
            if not going:
                break
            reference = self._window(alone)
            if alone.fault is not None:
                break
            self._references += [reference] if reference > 0 else []
            for turn in reversed(going) if number % 2 else going:
                turn.add(reference if turn is alone else self._window(turn), reference)
        if alone.fault is not None and alone not in turns:
            failure = "ran out of memory" if alone.fault.out_of_memory else f"failed: {error_line(alone.fault.text)}"
            self.notes.append(f"ended at {turns[0].n} at once: the training alone, beside them, {failure}")
        for turn in turns:
            if turn.fault is None and not turn.rates:
                if alone.fault is not None:
                    continue
                turn.fault = Fault(APART, out_of_memory=False)
            if turn.fault is None:
                self._weigh(turn)
            self._keep(turn)

    def _window(self, measured: Measured) -> float:
        """Return the samples/s of all trainings together in one window; 0 after a fault, or without a valid window."""
        return self._windows.rate(measured)

    def _weigh(self, measured: Measured) -> None:
        """Record the memory of each training: by NVML, which includes CUDA contexts, or else by the framework."""
        replies = answers([actor.taken.remote() for actor in measured.actors])
        memories: list[Taken] = [] if isinstance(replies, Fault) else replies
        uuid = self.probe.device.uuid
        by_pid = (nvml.process_memory(uuid) or {}) if uuid is not None and self.probe.local else {}
        measured.host_gib = _mean([part.host_gib for part in memories], measured.n)
        device_memories = [_of_all(by_pid, part.pids) or _with_context(part.device_gib) for part in memories]
        measured.device_gib = _mean(device_memories, measured.n)
        if measured.way == "mps" and self.mps is not None:
            attached = set(self.mps.clients())
            past = sum(attached.isdisjoint(part.pids) for part in memories)
            if past:
                measured.fault = Fault(
                    f"{past} of {measured.n} processes were not attached to MPS", out_of_memory=False
                )

    def _keep(self, measured: Measured) -> None:
        point = measured.point()
        if measured.fault is not None and measured.fault.out_of_memory:
            point = replace(point, free_gib=self._free_gib)
        keys = [(p.way, p.n, p.compiled) for p in self._measured]
        if (key := (point.way, point.n, point.compiled)) in keys:  # measured again: its processes had started before
            place = keys.index(key)
            self._measured[place] = replace(point, start_s=self._measured[place].start_s)
        else:
            place = len(keys)
            self._measured.append(point)
        self.say(f"{point.label}, {point.n} at once: {point.fault or _found(self.points[place])}")
        if measured.fault is not None:
            if measured is not self._alone:
                self._pools.end([measured.way])
            if not measured.fault.out_of_memory:
                self.notes.append(f"{measured.way}: {measured.n} at once failed: {point.fault}")


def _found(point: Point) -> str:
    """Return a measured point in a few words."""
    if point.samples_per_s is None or point.gain is None:
        return "nothing"
    spread = "" if is_alone(point) else spread_text(point.spread.low, point.spread.high)
    return f"{point.samples_per_s:,.0f}/s, {point.gain:.2f}x{spread if point.gain_low is not None else ''}"


def _last(points: Sequence[Point]) -> Point:
    return max(points, key=lambda p: p.n)


def _of_all(by_pid: Mapping[int, float | None], pids: Sequence[int]) -> float | None:
    """Return the memory that these processes hold together; None where none of them is listed."""
    sizes_gib = [gib for pid in pids if (gib := by_pid.get(pid)) is not None]
    return sum(sizes_gib) if sizes_gib else None


def _with_context(gib: float | None) -> float | None:
    """Add the CUDA context, which a framework does not count, to its memory in GiB."""
    return None if gib is None else gib + UNMEASURED_CONTEXT_GIB


def _mean(parts: Sequence[float | None], n: int) -> float | None:
    """Return the memory of all processes divided by n trainings; None if one of them is unknown."""
    known_parts = [part for part in parts if part is not None]
    return sum(known_parts) / n if known_parts and len(known_parts) == len(parts) else None
