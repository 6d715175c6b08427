"""Optimizer steps of a placed Keras model under TensorFlow's profiler: its operations, its copies, and a trace."""

from __future__ import annotations

import gzip
import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raygpu.planning.model_placements import Operation, StepProfile
from raygpu.training.keras.keras_private_api import read_profile
from raygpu.training.keras.quiet_import import tf

COPIES = "copies between devices"
NUM_OPERATIONS = 8
"""Number of operations listed in a profile."""
OPERATION = re.compile(r"^[^:\s]+:([A-Za-z_]\w*)$")
"""Name of an event of a graph's operation: the node, and the kind of operation."""
SEND, RECEIVE = "_Send", "_Recv"
PEER = "memcpyp2p"
"""Name of a copy between two GPUs, in small letters."""


@dataclass(frozen=True, slots=True)
class _Event:
    """An event of the profiler."""

    plane: str
    line: str
    name: str
    start_us: float
    duration_us: float
    stats: dict[str, Any]


def profiled_steps(step: Callable[[], Any], graph: Any, count: int) -> tuple[StepProfile, bytes]:
    """Take `count` steps under the profiler; return the mean step, and the trace, gzipped Chrome JSON.

    graph: of the step, whose shapes tell how large copied tensors are.
    """
    step()
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        try:
            for _ in range(count):
                step()
        finally:
            tf.profiler.experimental.stop()
        (path,) = Path(folder).rglob("*.xplane.pb")
        events = list(_events(read_profile(path)))
    return _mean_step(events, graph, count), gzip.compress(json.dumps(_chrome(events)).encode())


def _events(space: Any) -> Iterator[_Event]:
    for plane in space.planes:
        names = {key: value.name for key, value in plane.event_metadata.items()}
        stat_names = {key: value.name for key, value in plane.stat_metadata.items()}
        for line in plane.lines:
            for event in line.events:
                texts = {
                    stat_names[stat.metadata_id]: stat.str_value or stat_names.get(stat.ref_value, "")
                    for stat in event.stats
                }
                stats = {name: text for name, text in texts.items() if text}
                start_us = line.timestamp_ns / 1e3 + event.offset_ps / 1e6
                name = names.get(event.metadata_id, "")
                yield _Event(plane.name, line.name, name, start_us, event.duration_ps / 1e6, stats)


def _mean_step(events: list[_Event], graph: Any, count: int) -> StepProfile:
    """Add up the devices' time by kind of operation: of kernels on GPUs, of the operations themselves on a CPU."""
    on_gpu = any("/device:GPU" in event.plane for event in events)
    seconds: dict[str, float] = defaultdict(float)
    num_copies = copied = 0
    for event in events:
        match = OPERATION.match(event.name)
        if match is not None and match[1] == SEND and _is_between_devices(event):
            num_copies += 1
            copied += _num_bytes(graph, str(event.stats.get("from", "")))
        if (name := _kind(event, match, on_gpu)) is not None:
            seconds[name] += event.duration_us / 1e6 / count
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    operations = tuple(Operation(name, value) for name, value in ordered[:NUM_OPERATIONS] if value > 0)
    return StepProfile(sum(seconds.values()), seconds.get(COPIES, 0.0), num_copies / count, copied / count, operations)


def _kind(event: _Event, operation: re.Match[str] | None, on_gpu: bool) -> str | None:
    """Return the name under which an event's time counts; None if it does not."""
    if on_gpu:
        if "/device:GPU" not in event.plane or not event.line.startswith("Stream"):
            return None
        return COPIES if PEER in event.name.lower() else event.name
    if operation is None:
        return None
    return COPIES if operation[1] in (SEND, RECEIVE) else operation[1]


def _is_between_devices(event: _Event) -> bool:
    """Return whether a tensor is sent to another device; its key is source;number;target;name;frame."""
    source, _, target, *_ = [*str(event.stats.get("key", "")).split(";"), "", "", ""]
    return source != target


def _num_bytes(graph: Any, node: str) -> int:
    """Return the bytes of a node's first output; 0 for one that TensorFlow made itself, or whose shape is not known."""
    try:
        output = graph.get_operation_by_name(node).outputs[0]
    except (KeyError, IndexError, ValueError):
        return 0
    return (output.shape.num_elements() or 0) * max(0, int(output.dtype.size))


def _chrome(events: list[_Event]) -> dict[str, Any]:
    """Return events in the Chrome trace format: a process for each device, a thread for each of its lines."""
    planes = {plane: number for number, plane in enumerate(dict.fromkeys(event.plane for event in events))}
    lines = {key: number for number, key in enumerate(dict.fromkeys((event.plane, event.line) for event in events))}
    named = [{"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}} for name, pid in planes.items()]
    named += [
        {"ph": "M", "name": "thread_name", "pid": planes[plane], "tid": tid, "args": {"name": line}}
        for (plane, line), tid in lines.items()
    ]
    first = min((event.start_us for event in events), default=0.0)
    shown = [
        {
            "ph": "X", "name": event.name, "pid": planes[event.plane], "tid": lines[event.plane, event.line],
            "ts": event.start_us - first, "dur": event.duration_us, "args": event.stats,
        }
        for event in events
    ]  # fmt: skip
    return {"traceEvents": named + shown, "displayTimeUnit": "ms"}
