"""The gradient of one optimizer step of a sharded model: each rank has its part of the whole batch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from raygpu.training.distributed.ranks_gradient import RanksGradient
from raygpu.training.distributed.sharded.shards import Shards
from raygpu.training.torch.step_gradient import Gradients


class ShardedSum:
    """Sums the gradients of all ranks while each backward pass runs; in the place of a `GradientSum`."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self.at_once = True
        """Whether each gradient of the step has been summed in one message, so that |g|^2 of a rank is known."""

    def add(self, backward: Callable[[], None] | None, weight: float, square: torch.Tensor | None) -> None:
        """Run the backward pass of a part of a batch, and add its gradients, of all ranks, to those of the parts.

        backward: None if all of it has been done. weight, square: see `GradientSum.add`.
        """
        if backward is None:
            return
        lockstep = self._shards.lockstep
        lockstep.weight, lockstep.square = weight, square
        try:
            backward()
            self.at_once &= self._shards.collect()
        finally:
            lockstep.weight, lockstep.square = 1.0, None

    def end(self, divisor: torch.Tensor | None = None) -> None:
        """Divide the gradients of the parts."""
        if divisor is not None:
            for local in self._shards.locals:
                if local.grad is not None:
                    local.grad.div_(divisor)

    def close(self) -> None:
        """Do nothing: the hooks end with the model."""


class ShardedGradient(RanksGradient):
    """Computes the gradient of a step into the parts of the parameters that this rank holds."""

    def __init__(self, shards: Shards, ranks: Any, device: torch.device) -> None:
        self._shards, self._sums = shards, ShardedSum(shards)
        super().__init__(shards.locals, ranks, device)

    def _make_sum(self) -> ShardedSum:
        return self._sums

    @property
    def has_square(self) -> bool:
        """Whether |g|^2 of each rank's part of the batch is known: not where it comes in several pieces."""
        return super().has_square and self._sums.at_once and self._parts_added == 1

    def begin(self, own: int, share: float = 1.0, square: torch.Tensor | None = None) -> None:
        """Begin a step; see `RanksGradient.begin`."""
        super().begin(own, share, square)
        self._sums.at_once = True

    def _run(self, backward: Callable[[], None], weight: float, square: torch.Tensor | None, *, last: bool) -> None:
        self._sums.add(backward, weight, square)

    def _collected(self, backward: Callable[[], None], earlier: Gradients) -> Gradients:
        return super()._collected(lambda: self._sums.add(backward, 1.0, None), earlier)
