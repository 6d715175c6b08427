"""The compiled step of an array on a CPU: compiled ahead of time into a file, which loads in milliseconds.

    compile_step(program, arguments, package)      # 10 to 30 s
    step = LoadedStep(package)                     # milliseconds, without torch's compiler
    losses = step(*arguments)

The operators of the eager step are traced and compiled by AOTInductor. The file holds machine code for this processor
and this number of threads, for stacks of the same shapes and strides.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from raygpu.training.data.fields import unnamed
from raygpu.training.fused.random_inputs import traced
from raygpu.training.fused.tile import Stacked, Tile
from raygpu.training.torch.data import Tensors
from raygpu.training.torch.torch_private_api import load_package

Arguments = tuple[Any, ...]
"""Parameters, fixed ones, buffers and the optimizer's state of a tile, inputs, targets, numbers, and random numbers."""
FAST_TO_COMPILE = {"aot_inductor.compile_wrapper_opt_level": "O0"}
"""Options of the compiler: the code that calls the kernels takes most of its time, and nearly none of a step's."""


class SteppedProgram(Protocol):
    """The part of a program that is compiled: see `Program`."""

    def eager_step(
        self, tile: Tile, inputs: Tensors, targets: Tensors, numbers: torch.Tensor, drawn: list[torch.Tensor] | None
    ) -> torch.Tensor:
        """Take a step of all members; return the losses, packed."""


class LoadedStep:
    """A step that was compiled before, from its file. Raises RuntimeError if torch cannot load the file."""

    def __init__(self, package: Path) -> None:
        self._run = load_package(package)

    def __call__(self, *arguments: Any) -> torch.Tensor:
        """Take a step in place; return the losses, packed, (width, ...). arguments: as `Arguments`."""
        parameters, fixed, buffers, optimizer_state, inputs, targets, numbers, *drawn = arguments
        stacks = (parameters, fixed, buffers, *optimizer_state, _named(inputs), _named(targets))
        tensors = [tensor for stack in stacks for tensor in stack.values()]
        return self._run([*tensors, numbers, *(drawn[0] if drawn else [])])[0]


class StepCompiledAtFirst:
    """A step that is compiled at its first call, for this process alone."""

    def __init__(self, program: SteppedProgram) -> None:
        self._program = program
        self._loaded: LoadedStep | None = None

    def __call__(self, *arguments: Any) -> torch.Tensor:
        """Compile the step if this is the first call, then take it."""
        if self._loaded is None:
            with tempfile.TemporaryDirectory(prefix="raygpu-step-") as folder:
                package = Path(folder, "step.pt2")
                compile_step(self._program, arguments, package)
                self._loaded = LoadedStep(package)
        return self._loaded(*arguments)


def compile_step(program: SteppedProgram, arguments: Arguments, package: Path) -> None:
    """Compile the step of these arguments' shapes into a file, without taking it. Raises any exception of the compiler.

    Call it where the step would be called: inside `Program.training`, with the number of threads that the step will
    have.
    """
    stacks, names = [*arguments[:3], *arguments[3]], []
    tensors: list[torch.Tensor] = []
    for stack in (*stacks, *(_named(part) for part in arguments[4:6])):
        names.append([*stack])
        tensors += stack.values()
    num_states = len(arguments[3])
    rest = [arguments[6], *(arguments[7] if len(arguments) > 7 else [])]

    def step(*flat: torch.Tensor) -> tuple[torch.Tensor]:
        """Take the step on a list of tensors."""
        values: Iterator[torch.Tensor] = iter(flat)
        found = [{name: next(values) for name in part} for part in names]
        parameters, fixed, buffers, *optimizer_state = found[: 3 + num_states]
        inputs, targets = (unnamed(part) for part in found[3 + num_states :])
        numbers, *drawn = values
        tile = Tile([], [], parameters, fixed, buffers, optimizer_state)
        return (program.eager_step(tile, inputs, targets, numbers, drawn),)

    graph = traced(step, [*tensors, *rest])

    class Step(nn.Module):
        """The traced step in the form that is exported."""

        def forward(self, *flat: torch.Tensor) -> Any:
            """Take the step."""
            return graph(*flat)

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(Step(), (*tensors, *rest), strict=False)
        torch._inductor.aoti_compile_and_package(
            exported, package_path=str(package), inductor_configs={**FAST_TO_COMPILE}
        )


def _named(parts: Tensors) -> Stacked:
    """Return inputs or targets by name, sorted; a single tensor has no name."""
    return {name: parts[name] for name in sorted(parts)} if isinstance(parts, dict) else {"": parts}
