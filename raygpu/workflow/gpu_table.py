"""The table of `raygpu gpus`: each node's GPUs, under each what runs on it and what has room."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group
from rich.text import Text

from raygpu.cli.formatting import throughput
from raygpu.planning.gpu_room import Room
from raygpu.workflow.gpu_nodes import NodeStatus
from raygpu.workflow.gpu_rooms import WantedTraining
from raygpu.workflow.gpu_status import GpuProcess, GpuStatus, RoomOfTraining

COLUMNS = ("GPU", "model", "GiB used", "busy", "SM", "occup.", "DRAM", "W", "°C", "MHz", "RGU")
MODEL = 1
"""Place of the column that is to the left, and shortened where the terminal is narrow."""
SHORTEST_MODEL = 8
UNKNOWN = "-"
SHOWN_TRIALS = 3
INDENT = "     "


def view(nodes: Sequence[NodeStatus], width: int, wanted: WantedTraining | None = None) -> Group:
    """Return the nodes' tables for rich, in lines of this width.

    wanted: the training whose room was asked for; where it is not known, the last line says what to do.
    """
    rows = {id(gpu): _cells(gpu) for node in nodes if node.status is not None for gpu in node.status.gpus}
    widths = _widths([COLUMNS, *rows.values()], width)
    lines = []
    for node in nodes:
        if node.address is not None:
            alike = [each for each in nodes if (each.name, each.address) == (node.name, node.address)]
            lines.append(Text(_heading(node, by_id=len(alike) > 1), style="bold"))
        if node.status is None:
            continue
        gpus = node.status.gpus
        lines.append(Text(_row(COLUMNS, widths) if gpus else "no NVIDIA GPU here", style="bold" if gpus else ""))
        for gpu in gpus:
            lines.append(Text(_row(rows[id(gpu)], widths)))
            lines += [Text(INDENT + line) for line in _below(gpu)]
        rest = [*map(_process, node.status.elsewhere), *map(_room, node.status.rooms)]
        if rest:
            lines.append(Text("on none of these:" if gpus else "on the simulated GPU:"))
            lines += [Text(INDENT + line) for line in rest]
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    if wanted is not None and any(_lacks(node, wanted.name) for node in nodes):
        lines.append(Text(f"{wanted.name} was not measured on every device; {wanted.advice}"))
    return Group(*lines)


def _lacks(node: NodeStatus, name: str) -> bool:
    """Return whether the room of a training is not known for some device of a node."""
    if node.status is None:
        return False
    rooms = [*node.status.rooms, *(room for gpu in node.status.gpus for room in gpu.rooms)]
    return any(each.name == name and each.room.more is None for each in rooms)


def _heading(node: NodeStatus, *, by_id: bool) -> str:
    """Return the line above a node's GPUs. by_id: whether another node has the same name and address."""
    short_id = f", {node.node_id[:8]}" if by_id and node.node_id is not None else ""
    fault = f": {node.fault}" if node.fault is not None else ""
    return f"node {node.name} ({node.address}{short_id}){fault}"


def _widths(rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the widths of the columns; the models' is reduced until a row fits the terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    excess = sum(widths) + len(widths) - 1 - width
    widths[MODEL] = max(SHORTEST_MODEL, widths[MODEL] - max(0, excess))
    return widths


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    texts = []
    for place, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        short = cell if len(cell) <= width else _shortened(cell, width)
        texts.append(short.ljust(width) if place == MODEL else short.rjust(width))
    return " ".join(texts)


def _shortened(model: str, width: int) -> str:
    """Return a part of a model's name: its beginning, or of a MIG instance its end, which says how large it is."""
    more = "\N{HORIZONTAL ELLIPSIS}"
    return more + model[1 - width :] if " MIG " in model else model[: width - 1] + more


def _cells(status: GpuStatus) -> list[str]:
    window, memory, clock = status.window, status.memory, status.clock
    used = f"{memory.used_gib:.1f} of {memory.total_gib:.1f}" if memory is not None else UNKNOWN
    percentages = (window.util_pct, window.sm_util_pct, window.sm_occupancy_pct, window.dram_bandwidth_pct)
    return [
        status.gpu.label,
        status.gpu.name.removeprefix("NVIDIA "),
        used,
        *(f"{each:.0f}%" if each is not None else UNKNOWN for each in percentages),
        _number(window.power_w),
        _number(window.temperature_peak_c),
        _number(clock.mhz),
        f"{status.rgu:.1f}" if status.rgu is not None else UNKNOWN,
    ]


def _number(value: float | None) -> str:
    return f"{value:.0f}" if value is not None else UNKNOWN


def _below(status: GpuStatus) -> Iterator[str]:
    """Yield the lines under a GPU's row."""
    if status.clock.lowered_by:
        yield f"its clock is lowered by {', '.join(status.clock.lowered_by)}"
    for process in status.processes:
        yield _process(process)
    for each in status.rooms:
        yield _room(each)


def _process(process: GpuProcess) -> str:
    gib = f" {process.gpu_memory_gib:.1f} GiB" if process.gpu_memory_gib is not None else ""
    return f"{process.pid} {process.user or UNKNOWN}{gib}  {_training(process)}"


def _training(process: GpuProcess) -> str:
    noted = process.activity
    if noted is None:
        return process.command or UNKNOWN
    trials = ", ".join(noted.trials[:SHOWN_TRIALS])
    if len(noted.trials) > SHOWN_TRIALS:
        trials += f" ... ({len(noted.trials)} trials)"
    share = f", share {noted.share:.2f}" if noted.share is not None else ""
    rate = f", {throughput(noted.samples_per_s)}" if noted.samples_per_s is not None else ""
    return f"{noted.run}: {trials}{share}{rate}"


def _room(each: RoomOfTraining) -> str:
    room = each.room
    if room.more is None:
        return f"room for {UNKNOWN} more of {each.name}: {room.reason}"
    return f"room for {room.more} more of {each.name}: {_limits(room)}"


def _limits(room: Room) -> str:
    """Return both limits in words, the one that binds first, and why it does."""
    if room.bound == "compute mode":
        return "one process at a time"
    memory, gain = "memory not measured", "gain not measured"
    if room.by_memory is not None:
        memory = f"{room.by_memory} {'fits' if room.by_memory == 1 else 'fit'} by memory"
    if room.by_gain is not None:
        gain = f"{room.by_gain} still {'gains' if room.by_gain == 1 else 'gain'}"
    first, second = (memory, gain) if room.bound == "memory" else (gain, memory)
    return f"{first}, {second} ({room.reason})"
