"""Optimizer steps of a placed torch model under torch.profiler: its operations, its copies, and a trace."""

from __future__ import annotations

import gzip
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from raygpu.planning.model_placements import Operation, StepProfile

COPY = "raygpu::copy"
"""Name of a copy between devices in a profile, before its number of bytes."""
COPIES = "copies between devices"
NUM_OPERATIONS = 8
"""Number of operations listed in a profile."""


def copy_name(num_bytes: int) -> str:
    """Return the name of a copy in the profile."""
    return f"{COPY} {num_bytes} bytes"


def profiled_steps(
    steps: Iterator[Any], count: int, wait: Callable[[], None], *, on_gpu: bool
) -> tuple[StepProfile, bytes]:
    """Take `count` steps under the profiler; return the mean step, and the trace, gzipped Chrome JSON.

    wait: waits for the devices. on_gpu: whether these are GPUs.
    """
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as profiler:
        for _ in range(count):
            next(steps)
        wait()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        trace = gzip.compress(path.read_bytes())
    return _mean_step(profiler.events(), count, on_gpu), trace


def _mean_step(events: Any, count: int, on_gpu: bool) -> StepProfile:
    """Add up the devices' time by operation: of kernels on a GPU, of the operations themselves on a CPU."""
    seconds: dict[str, float] = defaultdict(float)
    num_copies = copied = 0
    for event in events:
        if event.device_type != DeviceType.CPU:
            continue  # a kernel counts with the operation that launched it
        if event.name.startswith(COPY):
            num_copies += 1
            copied += int(event.name.split()[1])
        name = COPIES if _is_copy(event) else event.name
        own_us = sum(kernel.duration for kernel in event.kernels) if on_gpu else event.self_cpu_time_total
        if name == COPIES or on_gpu or "::" in name:
            seconds[name] += own_us / 1e6 / count
    operations = (Operation(name, value) for name, value in seconds.items() if value > 0)
    ordered = sorted(operations, key=attrgetter("seconds"), reverse=True)
    device_s = sum(operation.seconds for operation in ordered)
    return StepProfile(device_s, seconds[COPIES], num_copies / count, copied / count, tuple(ordered[:NUM_OPERATIONS]))


def _is_copy(event: Any) -> bool:
    """Return whether an event is a copy between devices, or a part of one."""
    while event is not None:
        if event.name.startswith(COPY):
            return True
        event = event.cpu_parent
    return False
