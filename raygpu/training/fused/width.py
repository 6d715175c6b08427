"""Choose the width of an array's tiles and whether their step is compiled: measured when the array starts.

lines = settle(array, memory_limit)       # a few steps at a few widths, on copies
lines = take_compiled(array, kept)        # before each epoch
array.drop(losers); lines = resettle(array)

With a `ArrayCache`, widths that were measured before are used again, and compiled steps are loaded; a step that is not
there yet is compiled by another process while the array trains.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import torch

from raygpu.errors import one_line
from raygpu.experiment import Experiment
from raygpu.planning.array_tiles import (
    LADDER,
    best_width,
    compiling,
    covered,
    level,
    load_repays,
    next_rung,
    padded,
    widest,
)
from raygpu.planning.scaling_laws import Affine
from raygpu.search.hyperparameters import Hyperparameters
from raygpu.search.trials import Trial
from raygpu.training.fused.array_cache import ArrayCache
from raygpu.training.fused.audit import replays
from raygpu.training.fused.model_array import TorchArray
from raygpu.training.memory_usage import GIB, forget_peak, peak_bytes
from raygpu.training.own_copy import own_copy
from raygpu.training.torch.models import default_device, initial_model
from raygpu.training.torch.parameter_average import average_dtype

NUM_STEPS = 4
FEW_STEPS, LONG_S = 2, 0.1
"""Number of steps that suffice once they have taken these seconds."""
SLOWER = 0.9
"""Share of the best throughput so far: no wider tile is tried after one that falls below it."""
MOST_COMPILED = {"cpu": 128, "cuda": 512}
"""Largest width of a compiled step, whose fixed cost is small; on a CPU, the widest in `fused_throughput`'s record."""
LEAST, CLEAR = 4, 32
"""Width of the narrowest measured tile, and width up to which a slow step counts as a disturbance."""
BUSY = 0.8
"""Share of the time that a measurement has to have had a processor, to be kept."""
GRAPH_GAIN = 0.95
"""Share of a launched step's time that a replayed one may take: a recording holds the memory of its step."""
COPIES = 3
"""Number of tensors of a parameter's size in memory, without an average: the parameter, and up to two of the
optimizer."""


def settle(
    array: TorchArray,
    memory_limit: int | None = None,
    epochs_to_come: float | None = None,
    kept: ArrayCache | None = None,
) -> list[str]:
    """Choose the width, and load, request or compile the step if that repays; return lines for a person.

    memory_limit: bytes that the array may take. epochs_to_come: epochs of a mean member, if some will stop early.
    kept: what earlier arrays have left, and this one leaves; None keeps nothing.
    """
    count = len(array.trials)
    lines = use_graphs(array)
    step_s, most, origin = _known_widths(array, memory_limit, kept)
    if array.graphs and most < count:
        array.graphs = False  # each tile's recording holds the memory of its step as long as the tile lives
        lines.append("step not recorded as a CUDA graph: the recordings of all tiles do not fit in the GPU's memory")
    if not step_s:
        array.width = level(count, most)
        lines.append(f"{_at_once(array.width, count)}: more do not fit in the GPU's memory")
    else:
        array.eager = Affine.fit(step_s)
        best = min(most, best_width(step_s, max(most, min(step_s))))
        array.width = level(count, best)
        curve = ", ".join(f"{w}: {_rate(array, w, s)}" for w, s in step_s.items())
        lines.append(f"{_at_once(array.width, count)} ({origin}: {curve})")
        epochs = min(epochs_to_come or array.epochs, array.epochs - array.epoch)
        eager_s = epochs * array.steps_per_epoch * count * step_s.get(best, array.eager.at(best)) / best
        most_compiled = array.width if array.asked_width else MOST_COMPILED[array.device.type]
        lines += _compiled(array, level(count, min(most, most_compiled)), most, eager_s, kept)
    array.rearrange()
    return lines


def _compiled(array: TorchArray, width: int, most: int, eager_s: float, kept: ArrayCache | None) -> list[str]:
    """Load the step of this many members, or have it compiled, if that repays; return lines for a person.

    most: widest tile that memory allows. eager_s: seconds of the training to come without it.
    """
    if array.data.made_together:
        return ["step not compiled: a collate_fn makes the batches, whose shapes may differ"]
    kept = kept if kept is not None and kept.keeps else None
    if kept is not None and load_repays(eager_s):
        kept_width = width if array.asked_width else kept.width_of_program(width)
        if kept_width is not None and kept_width <= most and (line := _load(array, kept, kept_width)) is not None:
            return [line]
        width = width if array.asked_width else max(width, min(padded(width), most))
    earlier_s = kept.postponed_s(width) if kept is not None else 0.0
    first = _nothing_compiled()
    match compiling(array.device.type, eager_s, keeps=kept is not None, first=first, earlier_s=earlier_s):
        case "now":
            return [_compile(array, width, f"{eager_s:.0f} s of training of {len(array.trials)} trials are left")]
        case "never":
            return [f"step not compiled: the {eager_s:.1f} s of training that are left do not repay it"]
        case "beside":
            assert kept is not None
            fault, when = kept.request(width), "is being compiled in the background, and for later sweeps"
        case "later":
            assert kept is not None
            fault = kept.postpone(width, eager_s)
            when = "is compiled once this worker has ended, for later sweeps"
    return [f"step not compiled: {fault}" if fault is not None else f"step of {width} trials at once {when}"]


def take_compiled(array: TorchArray, kept: ArrayCache) -> list[str]:
    """Use the steps that were compiled beside the training meanwhile; return lines for a person."""
    lines = []
    for width, fault in kept.arrived():
        line = _load(array, kept, width) if fault is None else f"step not compiled: {fault}"
        if line is not None:
            lines.append(line)
        if width in array.compiled_s:
            array.rearrange()
    return lines


def _load(array: TorchArray, kept: ArrayCache, width: int) -> str | None:
    """Use a kept step, if there is one that does what the eager step does; return a line on the result, else None."""
    started = time.perf_counter()
    kept_program = kept.load(width)
    if kept_program is None:
        return None
    step_s, _ = measured(array, width)
    took_s = time.perf_counter() - started
    return _judged(array, width, step_s, f"step compiled on {kept_program.made_on}, loaded in {took_s:.2f} s")


def _known_widths(
    array: TorchArray, memory_limit: int | None, kept: ArrayCache | None
) -> tuple[dict[int, float], int, str]:
    """Return the seconds of a step at several widths, kept or measured now, the widest that memory allows, and a word
    on their origin."""
    count = len(array.trials)
    widths = kept.widths() if kept is not None else None
    if widths is not None:
        asked = {w: s for w, s in widths.step_s.items() if w == array.width}
        step_s = covered(widths.step_s, count) if array.asked_width is None else asked
        if step_s:
            return (
                step_s,
                _widest(array, padded(count), widths.num_bytes, memory_limit),
                f"kept from {widths.measured_on}",
            )
    busy = Busyness()
    step_s, num_bytes, most = _measured_widths(array, memory_limit)
    if kept is not None and not busy.found(array.device.type):
        earlier_s, earlier_bytes = (widths.step_s, widths.num_bytes) if widths is not None else ({}, {})
        kept.keep_widths({**earlier_s, **step_s}, {**earlier_bytes, **num_bytes})
    return step_s, most, "measured"


class Busyness:
    """Whether other processes took this one's processor since the object was made. Its timings are then not kept for
    later sweeps."""

    def __init__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def found(self, device: str) -> bool:
        """Return whether this process had less than BUSY of the time; on a GPU the processor waits anyway."""
        wall_s, cpu_s = time.perf_counter() - self._began[0], time.process_time() - self._began[1]
        return device == "cpu" and cpu_s < BUSY * wall_s


def _measured_widths(array: TorchArray, memory_limit: int | None) -> tuple[dict[int, float], dict[int, int], int]:
    """Measure the seconds and bytes of a step at several widths; return them with the widest that memory allows, up to
    the width of a compiled step."""
    count = len(array.trials)
    widths = [w for w in LADDER if LEAST <= w < count] + [min(count, LADDER[-1])]
    if array.asked_width is not None:
        widths = [array.width]
    step_s: dict[int, float] = {}
    num_bytes: dict[int, int] = {}
    for width in widths:
        if width > _widest(array, count, num_bytes, memory_limit):
            break
        try:
            step_s[width], num_bytes[width] = measured(array, width)
        except torch.cuda.OutOfMemoryError:
            return step_s, num_bytes, max(1, width // 2)
        if width > CLEAR and width / step_s[width] < SLOWER * max(w / s for w, s in step_s.items()):
            break
    return step_s, num_bytes, _widest(array, padded(count), num_bytes, memory_limit)


def _widest(array: TorchArray, count: int, num_bytes: Mapping[int, int], memory_limit: int | None) -> int:
    """Return the widest tile, up to `count`, whose memory stays below the limit: num_bytes of its step by width, and
    the order of an epoch of each member, which a measured step does not hold."""
    held = {width: step_bytes + width * array.data.order_bytes for width, step_bytes in num_bytes.items()}
    return widest(count, held, memory_limit)


def use_graphs(array: TorchArray) -> list[str]:
    """Record steps as CUDA graphs if that works and is faster; return lines for a person. On CUDA only."""
    if array.device.type != "cuda":
        return []
    width = min(LEAST, array.width)
    launched_s, _ = measured(array, width)
    array.graphs = True
    try:
        replayed_s, _ = measured(array, width)
        if not replays(array, array.tiles[0]):
            array.graphs = False
            return ["step not recorded as a CUDA graph: replayed, it differs from the launched one"]
    except Exception as error:  # noqa: BLE001 - an operator that waits for the host: launching is as right
        array.graphs = False
        return [f"step not recorded as a CUDA graph: {one_line(error)[:200]}"]
    array.graphs = replayed_s < GRAPH_GAIN * launched_s
    times = f"{1e3 * replayed_s:.2f} ms replayed, {1e3 * launched_s:.2f} ms launched, with {width} trials at once"
    return [f"step {'recorded' if array.graphs else 'not recorded'} as a CUDA graph: {times}"]


def resettle(array: TorchArray, kept: ArrayCache | None = None) -> list[str]:
    """Load a narrower step after members were dropped, or have it compiled, if that repays; return lines for a
    person."""
    count = len(array.trials)
    if not array.compiled_s or not count or (width := next_rung(count, [*array.compiled_s])) is None:
        return []
    if width in array.not_compiled or (kept is not None and width in kept.pending | kept.postponed):
        return []
    wider = min(array.compiled_s)
    # As long as a wider compiled step serves, its idle rows are all that a narrower one saves.
    seconds = (array.epochs - array.epoch) * array.steps_per_epoch * min(array.eager.at(count), array.compiled_s[wider])
    lines = _compiled(array, width, width, seconds, kept)
    array.rearrange()
    return [line for line in lines if "do not repay" not in line]


def capacity(experiment: Experiment, trial: Trial, gpu_fraction: float, host_memory_gib: float) -> tuple[int, int]:
    """Return the bytes that an array may take, and the number of members whose parameters and optimizer state fit in
    half.

    gpu_fraction: the array's share of its GPU. host_memory_gib: limit if there is no GPU.
    """
    device = default_device()
    limit = int(host_memory_gib * GIB)
    if device.type == "cuda":
        limit = int(torch.cuda.get_device_properties(device).total_memory * gpu_fraction)
    model = initial_model(own_copy(experiment), Hyperparameters(trial.hyperparameters), trial.seed)
    parameters = sum(p.nbytes for p in model.parameters())
    has_average = trial.hyperparameters.get("ema_decay") is not None
    average = sum(p.numel() * average_dtype(p).itemsize for p in model.parameters()) if has_average else 0
    member = parameters * COPIES + average + sum(b.nbytes for b in model.buffers())
    return limit, max(1, limit // 2 // max(1, member))


def measured(array: TorchArray, width: int) -> tuple[float, int]:
    """Return the seconds of one step of this many members, and the peak bytes with an evaluation. Works on copies."""
    forget_peak(array.device)
    steps = array.trial_steps(width)
    next(steps)  # the first one allocates, and compiles what is to be compiled
    array.wait()
    times: list[float] = []
    while len(times) < (FEW_STEPS if sum(times) > LONG_S else NUM_STEPS):
        started = time.perf_counter()
        next(steps)
        array.wait()
        times.append(time.perf_counter() - started)
    steps.close()
    array.trial_evaluation(_num_evaluated(array, width))
    array.wait()
    return min(times), peak_bytes(array.device)


def _num_evaluated(array: TorchArray, width: int) -> int:
    """Return the number of members whose evaluation takes the memory of that of a tile of this width: those at once.

    Batches of each member's own, and outputs for metrics of one member after the other, are those of all.
    """
    in_chunks = array.data.shared_validation and array.program.evaluation.metrics_are_fused
    return min(width, array.program.evaluation.at_once or width) if in_chunks else width


def _nothing_compiled() -> bool:
    """Return whether torch's compiler has cached nothing on this machine so far, without importing it."""
    named = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    folders = [Path(named)] if named else Path(tempfile.gettempdir()).glob("torchinductor_*")
    return not any(any(folder.glob("*")) for folder in folders)


def _compile(array: TorchArray, width: int, why: str) -> str:
    """Compile the step for a width, and keep it if it is faster; return a line on the result."""
    started = time.perf_counter()
    array.program.compile(width, array.batch_size)
    try:
        step_s, _ = measured(array, width)
    except Exception as error:  # noqa: BLE001 - no compiler here, or an operator that it does not know: eager is as right
        array.program.forget(width, array.batch_size)
        array.not_compiled.add(width)
        return f"step not compiled: {one_line(error)[:200]}"
    compile_s = time.perf_counter() - started
    return _judged(array, width, step_s, f"step compiled in {compile_s:.1f} s, since {why}")


def _judged(array: TorchArray, width: int, step_s: float, how: str) -> str:
    """Keep a compiled step if it is faster than the eager one; return a line on the result."""
    eager_s = array.eager.at(width)
    if step_s >= eager_s:
        array.program.forget(width, array.batch_size)
        array.not_compiled.add(width)
        times = f"{1e3 * step_s:.2f} ms, {1e3 * eager_s:.2f} ms eager"
        return f"step not compiled: for {width} trials at once it is no faster ({times})"
    array.width = max(array.width if array.compiled_s else 0, width)
    array.compiled_s[width] = step_s
    return f"{how}, {width} trials at once: {_rate(array, width, step_s)}, {eager_s / step_s:.1f}x the eager step"


def _at_once(width: int, count: int) -> str:
    return f"all {count} trials train at once" if width == count else f"{width} of {count} trials train at once"


def _rate(array: TorchArray, width: int, step_s: float) -> str:
    return f"{width * array.batch_size / step_s:,.0f} samples/s"
