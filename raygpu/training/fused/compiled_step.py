"""The compiled step of an array. On a CPU it is compiled ahead of time into a file, which loads in milliseconds.

    compile_step(eager_step, arguments, package)   # 10 to 30 s
    step = LoadedStep(package)                     # milliseconds, without torch's compiler
    losses = step(*arguments)

The operators of the eager step are traced, and compiled by AOTInductor into a file or by torch.compile for this
process. The file holds machine code for this processor and this number of threads, for stacks of the same shapes and
strides.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from raygpu.training.data.fields import unnamed
from raygpu.training.fused.random_inputs import traced
from raygpu.training.fused.tile import Tile
from raygpu.training.torch.data import by_name
from raygpu.training.torch.torch_private_api import load_package

Arguments = tuple[Any, ...]
"""Parameters, fixed ones, buffers and the optimizer's state of a tile, inputs, targets, numbers, and random numbers."""
EagerStep = Callable[..., torch.Tensor]
"""Function of a tile, inputs, targets, numbers and random numbers: `Program.eager_step`."""
IN_ORDER: dict[str, Any] = {"reorder_for_peak_memory": False} if torch.__version__ < "2.13" else {}
"""Options of the compiler: where torch 2.11 reorders kernels to save memory, some update a parameter in place before
the backward pass has read it."""
FAST_TO_COMPILE = {"aot_inductor.compile_wrapper_opt_level": "O0"}
"""Options of the compiler: the code that calls the kernels takes most of its time, and nearly none of a step's."""


class LoadedStep:
    """A step that was compiled before, from its file. Raises RuntimeError if torch cannot load the file."""

    def __init__(self, package: Path) -> None:
        self._run = load_package(package)

    def __call__(self, *arguments: Any) -> torch.Tensor:
        """Take a step in place; return the losses, packed, (width, ...). arguments: as `Arguments`."""
        return self._run(_flat(arguments))[0]


class StepCompiledAtFirst:
    """A step that is compiled at its first call, for this process alone."""

    def __init__(self, eager_step: EagerStep) -> None:
        self._step: Callable[..., torch.Tensor] | None = None
        self._eager_step: EagerStep | None = eager_step
        """None once the step is compiled: its program has this step, too."""

    def __call__(self, *arguments: Any) -> torch.Tensor:
        """Compile the step if this is the first call, then take it."""
        if self._step is None:
            assert self._eager_step is not None
            on_cpu = arguments[6].device.type == "cpu"
            self._step = (_compiled_into_a_file if on_cpu else compiled_in_memory)(self._eager_step, arguments)
            self._eager_step = None
        return self._step(*arguments)


def _compiled_into_a_file(eager_step: EagerStep, arguments: Arguments) -> LoadedStep:
    """Compile a step for a CPU into a file that is deleted once it is loaded."""
    with tempfile.TemporaryDirectory(prefix="raygpu-step-") as folder:
        package = Path(folder, "step.pt2")
        compile_step(eager_step, arguments, package)
        return LoadedStep(package)


def compiled_in_memory(eager_step: EagerStep, arguments: Arguments) -> Callable[..., torch.Tensor]:
    """Return a step that torch.compile compiles at its first call.

    It is given the traced operators: of the step's own code it could not follow the modes of torch functions, and with
    torch 2.11 some layers end the process (group norms in mixed precision) or raise (layers that share parameters).
    """
    options = {"guard_filter_fn": torch.compiler.keep_tensor_guards_unsafe, **IN_ORDER}
    run = torch.compile(traced_step(eager_step, arguments), fullgraph=True, dynamic=False, options=options)
    return lambda *own: run(*_flat(own))[0]


def compile_step(eager_step: EagerStep, arguments: Arguments, package: Path) -> None:
    """Compile the step of these arguments' shapes into a file, without taking it.

    Call it where the step would be called: inside `Program.training`, with the number of threads that the step will
    have. Raises any exception of the compiler, and RuntimeError where the file ends a process that loads it.
    """
    graph, tensors = traced_step(eager_step, arguments), _flat(arguments)

    class Step(nn.Module):
        """The traced step in the form that is exported."""

        def forward(self, *flat: torch.Tensor) -> Any:
            """Take the step."""
            return graph(*flat)

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(Step(), (*tensors,), strict=False)
        torch._inductor.aoti_compile_and_package(
            exported, package_path=str(package), inductor_configs={**FAST_TO_COMPILE, **IN_ORDER}
        )
    require_loadable(package)


def require_loadable(package: Path) -> None:
    """Raise RuntimeError if a process that loads the file does not live on.

    Compilers that link a second copy of the C++ library into it make such files. It costs the import of torch.
    """
    load = "import pathlib, sys; from raygpu.training.torch.torch_private_api import load_package"
    command = [sys.executable, "-c", f"{load}; load_package(pathlib.Path(sys.argv[1]))", str(package)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        words = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        reason = signal.Signals(-done.returncode).name if done.returncode < 0 else words[0]
        raise RuntimeError(f"a process that loads what the C++ compiler of this machine has made ends: {reason}")


def traced_step(eager_step: EagerStep, arguments: Arguments) -> Callable[..., Any]:
    """Trace the eager step of arguments of these shapes into a graph of operators, without taking it.

    The graph takes the tensors of `arguments` one by one, and returns a tuple of the losses.
    """
    stacks = (*arguments[:3], *arguments[3], *(by_name(part) for part in arguments[4:6]))
    names, num_states = [[*stack] for stack in stacks], len(arguments[3])

    def step(*flat: torch.Tensor) -> tuple[torch.Tensor]:
        """Take the step on a list of tensors."""
        values: Iterator[torch.Tensor] = iter(flat)
        parts = [{name: next(values) for name in part} for part in names]
        parameters, fixed, buffers, *optimizer_state = parts[: 3 + num_states]
        inputs, targets = (unnamed(part) for part in parts[3 + num_states :])
        numbers, *drawn = values
        tile = Tile([], [], parameters, fixed, buffers, optimizer_state)
        return (eager_step(tile, inputs, targets, numbers, drawn),)

    return traced(step, _flat(arguments))


def _flat(arguments: Arguments) -> list[torch.Tensor]:
    """Return the tensors of a step's arguments, in the order of a traced step."""
    parameters, fixed, buffers, optimizer_state, inputs, targets, numbers, *drawn = arguments
    stacks = (parameters, fixed, buffers, *optimizer_state, by_name(inputs), by_name(targets))
    return [*(tensor for stack in stacks for tensor in stack.values()), numbers, *(drawn[0] if drawn else [])]
