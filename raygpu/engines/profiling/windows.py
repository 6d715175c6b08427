"""Time windows of trainings that share a device: all begin together, so that their rates can be added."""

from __future__ import annotations

import time

from raygpu.devices.telemetry import Telemetry
from raygpu.engines.profiling.measured_points import Measured
from raygpu.engines.profiling.probe_actor import Fault
from raygpu.engines.profiling.probe_workers import ProbeProcesses, answers
from raygpu.training.timing import LEAD, covered

STEPS = 3
"""Minimum number of steps in a window."""
CALL_S, CALL_EACH_S = 0.05, 0.01
"""Seconds between the request for a window and its start: the minimum, and an addition for each process."""
TOGETHER = 0.8
"""Minimum share of every process's window in which all others work: their rates add up only then."""
TRIES = 4
"""Maximum number of tries of a window; each gives the processes three times the notice of the last."""
APART = "its processes did not work at the same time in any window: the machine is too busy"


class Windows:
    """Measure trainings on the device of a probe. window_s: seconds of a window, more if a step takes long."""

    def __init__(self, probe: ProbeProcesses, window_s: float) -> None:
        self.probe = probe
        self.window_s = window_s

    def rate(self, measured: Measured) -> float:
        """Return the work per second of all trainings together in one window, in samples/s.

        0 if a training fails, which sets `measured.fault`, or if the processes' windows do not coincide.
        """
        crowd = len(measured.actors) / (1 if self.probe.device.uuid else self.probe.num_cpus)
        seconds = max(self.window_s, STEPS * measured.step_s * max(1.0, crowd))
        thread_answers = answers([actor.threads.remote(measured.threads) for actor in measured.actors])
        if isinstance(thread_answers, Fault):
            measured.fault = thread_answers
            return 0.0
        notice_s = CALL_S + CALL_EACH_S * len(measured.actors)
        for _ in range(TRIES):
            start_at = time.time() + notice_s
            calls = [actor.window.remote(start_at, seconds, notice_s) for actor in measured.actors]
            reading = self._watch(start_at + LEAD * seconds, seconds)
            answered = answers(calls)
            if isinstance(answered, Fault):
                measured.fault = answered
                return 0.0
            windows = [window for windows in answered for window in windows]
            if covered(windows) >= TOGETHER:
                if reading:
                    measured.readings.append(reading)
                return float(sum(window.rate for window in windows))
            notice_s *= 3
        return 0.0

    def _watch(self, begin: float, seconds: float) -> dict[str, float]:
        """Return the GPU's readings in the window, by a point's fields; empty for a simulated or remote GPU."""
        uuid = self.probe.device.uuid
        if uuid is None or not self.probe.local:
            return {}
        time.sleep(max(0.0, begin - time.time()))
        with Telemetry(uuid) as telemetry:
            time.sleep(max(0.0, begin + seconds - time.time()))
        gpu_window = telemetry.reading()
        values = {
            "used_gib": gpu_window.memory_peak_gib,
            "util_pct": gpu_window.util_pct,
            "sm_util_pct": gpu_window.sm_util_pct,
            "sm_occupancy_pct": gpu_window.sm_occupancy_pct,
            "dram_bandwidth_pct": gpu_window.dram_bandwidth_pct,
            "power_w": gpu_window.power_w,
            "temperature_c": gpu_window.temperature_peak_c,
        }
        return {name: value for name, value in values.items() if value is not None}
