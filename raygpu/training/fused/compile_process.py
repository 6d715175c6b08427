"""A process that compiles the step of an array beside the training or after it, and keeps it for the next sweep.

python -m raygpu.training.fused.compile_process 5 < REQUEST     a pickled `CompileRequest`, from `start`

It leaves the process that started it, goes on when a sweep ends, and is the first to go when memory ends. One that is
not urgent waits for the end of that process, since even at the lowest priority it would slow down a training that uses
all processors, and then takes the processors' spare time. A fault is kept in a file, so that the same step
is not tried again within a day.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raygpu.records.array_store import ArrayStore

if TYPE_CHECKING:
    from raygpu.config.source import Source
    from raygpu.experiment import Splits
    from raygpu.search.trials import Trial
    from raygpu.training.base import Settings
    from raygpu.training.fused.code_files import CodeFiles
    from raygpu.training.fused.compiled_step import Arguments
    from raygpu.training.fused.model_array import TorchArray
    from raygpu.training.hyperparameters import OptimizerSettings

LOWEST = 19
"""Lowest scheduling priority, as a nice value."""
MOST_CPU_S, MOST_S = 900, 3600
"""Seconds of processor time, and of time, after which a compilation is given up."""

OTHER_CONSTANTS = "numbers that its code reads are others in the process that compiles, as those that data() sets"


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """A step to compile."""

    folder: Path
    """The store's folder."""
    name: str
    """Name of the program in the store."""
    code: CodeFiles
    """The files whose code the step is kept for."""
    source: Source
    splits: Splits
    """As many samples as a batch has; a step is compiled for their shapes."""
    trial: Trial
    """The first member."""
    optimizers: Sequence[OptimizerSettings]
    """Settings of all members, which decide on the terms of the optimizer's rule."""
    settings: Settings
    width: int
    path: Sequence[str]
    """Folders in which modules are looked up."""
    urgent: bool
    """Whether it takes its share of the processors at once; else it waits until the process that asks has ended."""


def start(request: CompileRequest, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a process that compiles a step; return the process that it leaves behind at once.

    environment: its variables. Raises OSError, or what pickle raises for a request that it cannot hold.
    """
    variables = {
        **environment,
        "PYTHONPATH": os.pathsep.join(request.path),
        "CUDA_VISIBLE_DEVICES": "",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    with tempfile.TemporaryFile() as file:
        pickle.dump(request, file)
        file.seek(0)
        read_end, write_end = os.pipe()
        waits = False
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "raygpu.training.fused.compile_process", str(read_end)],
                stdin=file,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=[read_end],
                env=variables,
            )
            waits = not request.urgent
            return process
        finally:
            os.close(read_end)
            if not waits:
                os.close(write_end)  # else it stays open as long as this process lives


def main() -> None:
    """Leave the parent, and compile what standard input asks for, once the pipe of the argument is closed."""
    if os.fork():
        os._exit(0)
    with open(int(sys.argv[1]), "rb") as pipe:
        pipe.read()
    request: CompileRequest = pickle.load(sys.stdin.buffer)  # not earlier: it holds samples while it waits
    _stand_back(0 if request.urgent else LOWEST)
    with _turn(request.folder):
        compile_and_keep(request)


def compile_and_keep(request: CompileRequest) -> None:
    """Compile a step and keep it, unless it is kept already or another process compiles it; note a fault in the store.

    Nothing is kept if the code is not the one that the step is for: its files may be edited while this process waits.
    """
    from raygpu.errors import one_line

    store = ArrayStore(request.folder)
    with store.making(request.name) as package:
        if package is None or store.program(request.name) is not None:
            return
        try:
            os.chdir(request.source.folder)
            code: Any = request.source.resolve()
            if request.code.are_unchanged():  # as it was imported
                _compile(request, code, package)
            if not request.code.are_unchanged():  # its other modules may be imported by a step
                package.unlink(missing_ok=True)
        except Exception as error:  # noqa: BLE001 - no compiler, or an operator that it does not know
            package.unlink(missing_ok=True)
            store.keep_fault(request.name, one_line(error)[:200])


def _compile(request: CompileRequest, code: Any, package: Path) -> None:
    import torch

    from raygpu.training.fused.array_key import array_key
    from raygpu.training.fused.compiled_step import compile_step
    from raygpu.training.fused.model_array import TorchArray

    array = TorchArray(code, request.splits, [request.trial], request.settings, device=torch.device("cpu"))
    arguments = step_arguments(array, request.optimizers, request.settings, request.width)
    tile = array.tiles[0]
    tile.optimizer_state = array.program.optimizer.new_state(tile.parameters, tile.buffers)
    if not request.name.startswith(f"{array_key(array, request.code)}-"):
        raise RuntimeError(OTHER_CONSTANTS)
    with array.program.training():
        compile_step(array.program.eager_step, arguments, package)


def step_arguments(
    array: TorchArray, optimizers: Sequence[OptimizerSettings], settings: Settings, width: int
) -> Arguments:
    """Return the arguments of the step of a whole batch of an array that is as wide, from an array of its first
    member.

    optimizers: settings of all members.
    """
    import torch

    from raygpu.training.fused.optimizers import ArrayOptimizer
    from raygpu.training.fused.tile import gathered_tile

    program = array.program
    program.optimizer = ArrayOptimizer(optimizers, settings.changing, has_loss_scale=settings.scales_loss)
    tile = gathered_tile([(array.tiles[0], 0)], width)
    tile.optimizer_state = program.optimizer.new_state(tile.parameters, tile.buffers)
    tile.streams = array.streams(tile)
    chosen = torch.arange(array.batch_size).expand(width, -1)
    inputs, targets = array.data.train_batch(1, chosen)
    rows = tile.rows_of(tile.optimizer_settings)
    numbers = program.optimizer.numbers(rows, 1, array.steps_per_epoch, array.epochs)[0]
    numbers = numbers.to(array.device, program.number_type)
    with program.training():
        drawn = program.drawn(tile, inputs, targets)
    stacks = tile.parameters, tile.fixed, tile.buffers, tile.optimizer_state
    return (*stacks, inputs, targets, numbers, *([drawn] if drawn else []))


def _stand_back(niceness: int) -> None:
    """Yield processors and memory to others, and end some time even if the compiler hangs."""
    os.nice(niceness)
    with suppress(OSError):  # Linux shares processors out by session first (man 7 sched)
        Path("/proc/self/autogroup").write_text(str(niceness))
    with suppress(OSError):  # where memory ends, this process goes first
        Path("/proc/self/oom_score_adj").write_text("1000")
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    with suppress(OSError, ValueError):  # the worker's limit is that of its share of a simulated device
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S))
    signal.alarm(MOST_S)


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Wait for a turn: of all compilations of this user, as many run at once as half the processors."""
    count = max(1, len(os.sched_getaffinity(0)) // 2)
    with (folder / f"turn-{os.getpid() % count}").open("w") as lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    main()
