"""A tile's step as a CUDA graph: recorded once, replayed without the host launching its kernels one by one."""

from __future__ import annotations

from collections.abc import Callable

import torch

from raygpu.training.array_tile import Tile
from raygpu.training.torch_data import Tensors, copied

Step = Callable[[Tile, Tensors, Tensors, torch.Tensor], torch.Tensor]
NUM_WARM_UP = 3
"""Steps before the recording, as PyTorch's notes on CUDA graphs ask for."""


class GraphedStep:
    """`step` on one tile, for batches of one shape.

    copy: of the tile, for the steps that warm up; the tile itself is not changed by the recording.
    """

    def __init__(
        self, step: Step, tile: Tile, copy: Tile, inputs: Tensors, targets: Tensors, numbers: torch.Tensor
    ) -> None:
        self._inputs, self._targets, self._numbers = copied(inputs), copied(targets), numbers.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(NUM_WARM_UP):
                step(copy, self._inputs, self._targets, self._numbers)
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._losses = step(tile, self._inputs, self._targets, self._numbers)

    def __call__(self, inputs: Tensors, targets: Tensors, numbers: torch.Tensor) -> torch.Tensor:
        """The losses, packed, (width, ...); the next call overwrites them."""
        _copy(self._inputs, inputs)
        _copy(self._targets, targets)
        self._numbers.copy_(numbers)
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
