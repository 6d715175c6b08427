"""A check that all ranks gather and sum the same blocks in the same order, before each of these messages.

A sharded model needs that: a rank whose samples take another branch would wait for ever, or add gradients of other
parameters than the rest. The check is a message of 16 bytes between the processors of the ranks, not their GPUs.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from raygpu.training.distributed.sharded.fsdp_private_api import DefaultAllGather, DefaultReduceScatter

END = "the end of the backward pass"
WITHOUT = 'sharding = "none" trains it'


class Lockstep:
    """Check, at each message between ranks, that all of them are at the same place of a step."""

    def __init__(self, ranks: Any, names: Sequence[str]) -> None:
        """ranks: `TorchRanks`, whose group of the processors carries the check. names: of the model's parameters."""
        self._ranks, self.names = ranks, names
        self.arrived: list[int] = []
        """Parameters whose gradients have been summed since the last check of an end, by index, in their order."""
        self.in_loss = False
        """Whether the user's training step computes its loss."""
        self.weight = 1.0
        """Factor on this rank's gradients in the sum."""
        self.square: torch.Tensor | None = None
        """Tensor to which |g|^2 of this rank's part of the sum is added; None to measure nothing."""

    def check(self, what: str, size: int = 0) -> None:
        """Compare what this rank does next with the others; all of them wait.

        size: of the message. Raises RuntimeError on all ranks, with what each is about to do, if they differ.
        """
        code = zlib.crc32(f"{what} {size} {self.arrived}".encode())
        codes = torch.tensor([code, -code])
        dist.all_reduce(codes, dist.ReduceOp.MAX, group=self._ranks.group)
        if codes[0] == -codes[1]:
            return
        told_all = self._ranks.gather([(what, self.arrived)])
        where = ", ".join(f"rank {rank} at {place}" for rank, (place, _) in enumerate(told_all))
        if len({place for place, _ in told_all}) == 1:
            where = f"at {what}, {difference([arrived for _, arrived in told_all], self.names)}"
        raise RuntimeError(
            f"the ranks' samples take other ways through the model ({where}); a sharded one needs the same: {WITHOUT}"
        )

    def end(self) -> list[int]:
        """Compare the gradients of the backward pass that has ended; return the indices of their parameters."""
        self.check(END)
        arrived, self.arrived = self.arrived, []
        return arrived

    def require_outside_loss(self) -> None:
        """Raise RuntimeError if a gradient flows while the training step computes its loss."""
        if self.in_loss:
            raise RuntimeError(
                "training_step() computes a gradient of the model by itself (torch.autograd.grad or backward()), which"
                f" is not possible with a sharded model: {WITHOUT}"
            )


def difference(arrived: Sequence[Sequence[int]], names: Sequence[str]) -> str:
    """Return how the ranks' gradients differ. arrived: indices of each rank's parameters, in order. names: of all."""
    gradients = [set(indices) for indices in arrived]
    of_some = gradients[0].union(*gradients) - gradients[0].intersection(*gradients)
    if not of_some:
        return "with gradients in another order"
    return f"with gradients of other parameters, such as {names[min(of_some)]}"


class CheckedAllGather(DefaultAllGather):
    """Gathers the parameters of a block, if all ranks gather that one."""

    def __init__(self, lockstep: Lockstep, name: str) -> None:
        super().__init__()
        self._lockstep, self._name = lockstep, name

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False
    ) -> Any:
        self._lockstep.check(f"the parameters of {self._name}", input_tensor.numel())
        return super().__call__(output_tensor, input_tensor, group, async_op)


class CheckedReduceScatter(DefaultReduceScatter):
    """Sums the gradients of a block, each rank's times its weight, if all ranks sum those of that one."""

    def __init__(self, lockstep: Lockstep, name: str) -> None:
        super().__init__()
        self._lockstep, self._name = lockstep, name

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, async_op: bool = False
    ) -> Any:
        lockstep = self._lockstep
        lockstep.check(f"the gradients of {self._name}", input_tensor.numel())
        if lockstep.weight != 1:
            input_tensor.mul_(lockstep.weight)
        if lockstep.square is not None:
            lockstep.square += input_tensor.float().square().sum()
        return super().__call__(output_tensor, input_tensor, group, op, async_op)
