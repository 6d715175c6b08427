"""How many trainings a device carries in each way, found by running them at growing numbers for short windows.

    climb = Climb(probe, ("process", "fused"), most=34, rounds=3, window_s=1.0)
    climb.run()                 # climb.points, climb.notes

At each number of trainings all ways take turns, round by round, and one training alone has its turn in each round: what
the machine does meanwhile is the same for all, and a gain is a ratio of neighbours in time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from raygpu.devices import nvml
from raygpu.devices.host import available_memory_gib
from raygpu.devices.limits import UNMEASURED_CONTEXT_GIB
from raygpu.devices.mps import Access
from raygpu.devices.telemetry import Telemetry
from raygpu.engines.measured import Measured
from raygpu.engines.pools import Pools
from raygpu.engines.probe import Probe, answers
from raygpu.engines.probe_actor import Fault, Taken
from raygpu.errors import last_line
from raygpu.profiles import Point, rises
from raygpu.sections import WAYS, Way
from raygpu.training.timed import LEAD

HOPELESS = 0.4
"""Of the best gain: a compiled step is seldom more than twice as fast."""
STEPS = 3
"""That a window holds at least."""
CALL_S, CALL_EACH_S = 0.05, 0.01
"""Between asking the processes for a window and its start: at least, and for each process."""
MARGIN = 0.9
"""Of the free memory, what the probe's processes may fill."""
LEAST: Mapping[Way, int] = {"mps": 2, "split": 2, "threads": 2}
"""The smallest number at which a way is another one than one training alone."""
MOST: Mapping[Way, int] = {"mps": 48, "threads": 8}
"""MPS takes no more clients; threads of one process are no way that needs a longer look."""


class Climb:
    """Points at growing numbers of trainings, until nothing is gained or memory ends.

    most: the highest number. mps: the daemon of packed processes under MPS. numbers: these, whether they gain or not.
    say: shows a line.
    """

    def __init__(
        self,
        probe: Probe,
        ways: Sequence[Way],
        *,
        most: int,
        rounds: int,
        window_s: float,
        mps: Access | None = None,
        numbers: Sequence[int] | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.probe = probe
        self.most = most
        self.rounds = rounds
        self.window_s = window_s
        self.mps = mps
        self.numbers = numbers
        self.say = say
        self.points: list[Point] = []
        self.notes: list[str] = []
        self._ways = list(ways)
        """Those that go on to the next number."""
        self._pools = Pools(probe, mps)
        self._alone: Measured | None = None

    def begin(self) -> bool:
        """One training alone, which everything is compared with; False where it fails."""
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
        """1, 2, 3, 5, 8 ... at once, in each way for as long as it gains; or the numbers that were asked for."""
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
        """Whether the training alone, which everything is compared with, still runs."""
        return self._alone is not None and self._alone.fault is None

    def measure(self, numbers: Mapping[Way, int]) -> None:
        """A point of each of these ways, at its number of trainings: by turns, or one after the other where memory does
        not hold the processes of all at once."""
        if len(numbers) > 1 and self._fit_together(numbers):
            turns = [self._turn(way, n) for way, n in numbers.items()]
            if not any(turn.fault is not None and turn.fault.out_of_memory for turn in turns):
                self._measure(turns)
                return
            self._pools.end([*numbers])
        for way, n in numbers.items():
            self._pools.end([other for other in self._pools.ways if other != way])
            self._measure([self._turn(way, n)])

    def _turn(self, way: Way, n: int) -> Measured:
        assert self._alone is not None
        return self._alone if (way, n) == ("process", 1) else self._ready(way, n)

    def compile(self) -> None:
        """The fused array at its best width once more, its step compiled."""
        eager = [p for p in self.points if p.way == "fused" and p.gain is not None]
        if not eager or self._alone is None or self._alone.fault is not None:
            return
        best = max(eager, key=lambda p: p.gain or 0.0)
        if (best.gain or 0.0) < HOPELESS * max(p.gain or 0.0 for p in self.points):
            self.notes.append("fused: step not compiled: it is too far behind")
            return
        self.say(f"fused, {best.n} at once: its step is being compiled")
        measured = self._ready("fused", best.n)
        answer = measured.fault or answers([actor.compile.remote() for actor in measured.actors])
        if isinstance(answer, Fault):
            self.notes.append(f"fused: step not compiled: {last_line(answer.text)}")
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
            self.notes.append(f"{way}: {n} at once not tried: {short}")
        return short is None

    def _short(self, way: Way, n: int, points: Sequence[Point]) -> str | None:
        """Which memory n trainings would not find, by what each took before; None where there is enough."""
        if not points or not self.probe.local:
            return None
        last = _last(points)
        host_gib, device_gib = self._free()
        others = [_last(found) for other in WAYS if other != way and (found := self._of(other))]
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
        """Whether the processes of all these ways are likely to find memory beside each other."""
        if not self.probe.local:
            return True
        lasts = {way: _last(found) for way in numbers if (found := self._of(way))}
        host_gib, device_gib = self._free()
        more = {way: numbers[way] - self._pools.held(p) for way, p in lasts.items()}
        host_more = sum(more[way] * (p.host_gib or 0.0) for way, p in lasts.items())
        device_more = sum(more[way] * (p.device_gib or 0.0) for way, p in lasts.items())
        return host_more <= MARGIN * host_gib and (device_gib is None or device_more <= MARGIN * device_gib)

    def _free(self) -> tuple[float, float | None]:
        """GiB of the host and of the device; None of a simulated one."""
        memory = nvml.memory(self.probe.device.uuid) if self.probe.device.uuid else None
        return available_memory_gib(), memory.free_gib if memory else None

    def _of(self, way: Way) -> list[Point]:
        return [p for p in self.points if p.way == way]

    # Getting ready

    def _ready(self, way: Way, n: int) -> Measured:
        """n trainings that have taken their first steps; of processes, those of a smaller n go on."""
        started = time.monotonic()
        threads = self._threads(way, n)
        actors, new = self._pools.take(way, n, threads)
        copies = self.probe.copies(n)
        parts = [[trial] for trial in copies[n - len(new) :]] if way in ("process", "mps") else [copies]
        memory_gib = self.probe.device.memory_gib
        made = self.probe.make(way, new, parts, threads, memory_gib and MARGIN * memory_gib / n) if new else []
        # Processes of fewer at once go on: their start belongs to what n take.
        before_s = max((p.start_s or 0.0 for p in self._of(way)), default=0.0) if len(new) < len(actors) else 0.0
        measured = Measured(way, n, threads, actors, start_s=before_s + time.monotonic() - started)
        if isinstance(made, Fault):
            measured.fault = made
            return measured
        evaluations = [answer.evaluation_s for answer in made] or [p.evaluation_s for p in self.points if p.way == way]
        measured.evaluation_s = evaluations[-1]
        alone_s = self._alone.step_s if self._alone is not None else 0.0
        measured.step_s = max([alone_s, *(answer.step_s for answer in made)])
        return measured

    def _threads(self, way: Way, n: int) -> int:
        """CPU threads of each training, or of an array; of TensorFlow, whose threads are one pool, of the process."""
        shared = way == "fused" or (way in ("split", "threads") and self.probe.source.kind == "keras")
        return self.probe.num_cpus if shared else max(1, self.probe.num_cpus // n)

    def _choose_threads(self, alone: Measured) -> None:
        """One training alone with all threads or with one, whichever is faster."""
        if self.probe.source.kind != "torch" or self.probe.num_cpus == 1:
            return
        rates = {}
        for threads in (1, self.probe.num_cpus):
            alone.threads = threads
            rates[threads] = max(self._window(alone) for _ in range(2))
        alone.threads = max(rates, key=lambda threads: rates[threads])
        alone.readings.clear()

    # Measuring

    def _measure(self, turns: Sequence[Measured]) -> None:
        """Rounds of a window each, every other round in reverse; one alone has a turn in each."""
        alone = self._alone
        assert alone is not None
        for number in range(self.rounds):
            going = [measured for measured in turns if measured.fault is None]
            reference = self._window(alone) if going else 0.0
            if alone.fault is not None:
                break
            for measured in reversed(going) if number % 2 else going:
                rate = reference if measured is alone else self._window(measured)
                measured.rates.append(rate)
                measured.gains.append(rate / reference if reference else 0.0)
        if alone.fault is not None and alone not in turns:
            what = "ran out of memory" if alone.fault.out_of_memory else f"failed: {last_line(alone.fault.text)}"
            self.notes.append(f"ended at {turns[0].n} at once: the training alone, beside them, {what}")
        for measured in turns:
            if measured.fault is None and not measured.rates:
                continue
            if measured.fault is None:
                self._weigh(measured)
            self._keep(measured)

    def _window(self, measured: Measured) -> float:
        """Work per second of all together in one window; 0 where one fails, which is then its fault."""
        crowd = len(measured.actors) / (1 if self.probe.device.uuid else self.probe.num_cpus)
        seconds = max(self.window_s, STEPS * measured.step_s * max(1.0, crowd))
        told = answers([actor.threads.remote(measured.threads) for actor in measured.actors])
        if isinstance(told, Fault):
            measured.fault = told
            return 0.0
        start_at = time.time() + CALL_S + CALL_EACH_S * len(measured.actors)
        calls = [actor.window.remote(start_at, seconds) for actor in measured.actors]
        reading = self._watch(start_at + LEAD * seconds, seconds)
        found = answers(calls)
        if isinstance(found, Fault):
            measured.fault = found
            return 0.0
        if reading:
            measured.readings.append(reading)
        return float(sum(window.rate for windows in found for window in windows))

    def _watch(self, begin: float, seconds: float) -> dict[str, float]:
        """What the GPU tells of itself in the window, by the names of a point; nothing of a simulated one."""
        uuid = self.probe.device.uuid
        if uuid is None or not self.probe.local:
            return {}
        time.sleep(max(0.0, begin - time.time()))
        with Telemetry(uuid) as telemetry:
            time.sleep(max(0.0, begin + seconds - time.time()))
        told = telemetry.reading()
        values = {
            "used_gib": told.memory_peak_gib,
            "util_pct": told.util_pct,
            "sm_util_pct": told.sm_util_pct,
            "sm_occupancy_pct": told.sm_occupancy_pct,
            "dram_bandwidth_pct": told.dram_bandwidth_pct,
            "power_w": told.power_w,
            "temperature_c": told.temperature_peak_c,
        }
        return {name: value for name, value in values.items() if value is not None}

    def _weigh(self, measured: Measured) -> None:
        """What each training takes. Of a GPU by NVML's figures, which include contexts; else by the framework's."""
        found = answers([actor.taken.remote() for actor in measured.actors])
        taken: list[Taken] = [] if isinstance(found, Fault) else found
        uuid = self.probe.device.uuid
        by_pid = (nvml.process_memory(uuid) or {}) if uuid is not None and self.probe.local else {}
        measured.host_gib = _mean([part.host_gib for part in taken], measured.n)
        held = [_of_all(by_pid, part.pids) or _with_context(part.device_gib) for part in taken]
        measured.device_gib = _mean(held, measured.n)
        if measured.way == "mps" and self.mps is not None:
            attached = set(self.mps.clients())
            past = sum(attached.isdisjoint(part.pids) for part in taken)
            if past:
                measured.fault = Fault(
                    f"{past} of {measured.n} processes were not attached to MPS", out_of_memory=False
                )

    def _keep(self, measured: Measured) -> None:
        point = self._as_alone_was(measured.point())
        self.points.append(point)
        rate = "" if point.samples_per_s is None else f"{point.samples_per_s:,.0f}/s, {point.gain:.2f}x"
        self.say(f"{point.label}, {point.n} at once: {point.fault or rate}")
        if measured.fault is not None:
            if measured is not self._alone:
                self._pools.end([measured.way])
            if not measured.fault.out_of_memory:
                self.notes.append(f"{measured.way}: {measured.n} at once failed: {point.fault}")

    def _as_alone_was(self, point: Point) -> Point:
        """Its throughput by its gain over one training alone, whose first measurement counts for all numbers.

        A machine that others use is slower for minutes; in the same rounds one training alone is slower too.
        """
        first = next((p.samples_per_s for p in self.points if (p.way, p.n) == ("process", 1)), None)
        if first is None or point.gain is None:
            return point
        return replace(point, samples_per_s=first * point.gain)


def _last(points: Sequence[Point]) -> Point:
    return max(points, key=lambda p: p.n)


def _of_all(by_pid: Mapping[int, float | None], pids: Sequence[int]) -> float | None:
    """What these processes hold together; None where none of them is listed."""
    found = [gib for pid in pids if (gib := by_pid.get(pid)) is not None]
    return sum(found) if found else None


def _with_context(gib: float | None) -> float | None:
    """What a framework holds, and what it does not count."""
    return None if gib is None else gib + UNMEASURED_CONTEXT_GIB


def _mean(parts: Sequence[float | None], n: int) -> float | None:
    """The sum of all processes over n trainings; None where one does not tell."""
    known = [part for part in parts if part is not None]
    return sum(known) / n if known and len(known) == len(parts) else None


def fibonacci() -> Iterator[int]:
    """1, 2, 3, 5, 8, 13, 21, 34 ... without end."""
    low, high = 1, 2
    while True:
        yield low
        low, high = high, low + high
