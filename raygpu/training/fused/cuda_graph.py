"""A tile's step as a CUDA graph: recorded once, replayed without the host launching its kernels one by one."""

from __future__ import annotations

import torch

from raygpu.training.fused.program import Drawn, Program, shapes_of
from raygpu.training.fused.tile import Tile
from raygpu.training.torch.data import Tensors, copied

NUM_WARM_UP = 3
"""Warm-up steps before the recording, required by PyTorch's notes on CUDA graphs."""


class GraphedStep:
    """The step of one tile, for batches of one shape, recorded as a CUDA graph.

    copy: a copy of the tile for the warm-up steps; the recording does not change the tile itself.
    Raises ValueError for a model whose random numbers depend on its values.
    """

    def __init__(
        self, program: Program, tile: Tile, copy: Tile, inputs: Tensors, targets: Tensors, numbers: torch.Tensor
    ) -> None:
        self._inputs, self._targets, self._numbers = copied(inputs), copied(targets), numbers.clone()
        self._shapes = shapes_of(inputs, targets)
        # Drawn outside: a graph cannot set the members' generators.
        self._drawn = drawn = program.drawn(copy, inputs, targets)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(NUM_WARM_UP):
                program.supplied_step(copy, self._inputs, self._targets, self._numbers, drawn)
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        # The threads of a DataLoader allocate and wait meanwhile, which would break a recording of the whole process.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._losses = program.supplied_step(tile, self._inputs, self._targets, self._numbers, drawn)

    def takes(self, inputs: Tensors, targets: Tensors) -> bool:
        """Return whether a batch has the recorded shapes."""
        return shapes_of(inputs, targets) == self._shapes

    def __call__(self, inputs: Tensors, targets: Tensors, numbers: torch.Tensor, drawn: Drawn) -> torch.Tensor:
        """Replay the step; return the losses, packed, (width, ...). The next call overwrites them.

        drawn: the step's random numbers, as `Program.drawn` returns them.
        """
        _copy(self._inputs, inputs)
        _copy(self._targets, targets)
        self._numbers.copy_(numbers)
        for tensor, number in zip(self._drawn, drawn, strict=True):
            tensor.copy_(number)
        self._graph.replay()
        return self._losses


def _copy(into: Tensors, parts: Tensors) -> None:
    if isinstance(into, dict):
        assert isinstance(parts, dict)
        for name, tensor in into.items():
            tensor.copy_(parts[name])
    else:
        assert isinstance(parts, torch.Tensor)
        into.copy_(parts)
