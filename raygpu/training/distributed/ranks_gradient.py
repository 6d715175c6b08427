"""The gradient of one optimizer step, from the losses of a batch's parts on several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from raygpu.experiment import Mean, Sum
from raygpu.training.distributed.gradients import GradientSum
from raygpu.training.distributed.ranks import Ranks
from raygpu.training.loss_kinds import LossKind
from raygpu.training.torch.experiment_optimizer import AnyOptimizer
from raygpu.training.torch.own_optimizer import OwnOptimizer
from raygpu.training.torch.several_optimizers import SeveralOptimizers
from raygpu.training.torch.step_gradient import StepGradient

NO_GRADIENT = (
    "loss() returned a total without a gradient for the samples of one device, whose SyncBatchNorm the other devices"
    " wait for in the backward pass; keep it in the graph, as by adding 0 * outputs.sum()"
)


def keeps_gradients(optimizer: AnyOptimizer) -> bool:
    """Return whether an optimizer may keep a gradient of a step without a copy: any but raygpu's and torch's own."""
    if isinstance(optimizer, SeveralOptimizers):
        return any(keeps_gradients(each) for each in optimizer._by_name.values())
    return isinstance(optimizer, OwnOptimizer) and not type(optimizer._optimizer).__module__.startswith("torch.optim.")


class RanksGradient(StepGradient):
    """Computes the gradient of a step whose batch is split over ranks. All ranks make the same calls."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        ranks: Ranks,
        device: torch.device,
        *,
        copies: bool = False,
        joint_norm: bool = False,
    ) -> None:
        """copies: see `GradientSum`. joint_norm: whether the model has a SyncBatchNorm, see `has_joint_norm`."""
        self._ranks, self._copies, self._joint_norm = ranks, copies, joint_norm
        self._work: Any = None
        """The sum of `_parts` over ranks, under way."""
        super().__init__(parameters, device)

    def _make_sum(self) -> Any:
        if self._ranks.world == 1:
            return None
        overlaps = False if self._joint_norm else None
        return GradientSum(self._parameters, self._ranks, copies=self._copies, overlaps=overlaps)

    def add(self, loss: Any, size: int, *, last: bool) -> None:
        """Take in the loss of a part; see `StepGradient.add`. Raises ValueError for a loss without a gradient where the
        other ranks would wait for this one's backward pass."""
        if self._joint_norm and isinstance(loss, Mean | Sum) and not torch.as_tensor(loss.total).requires_grad:
            raise ValueError(NO_GRADIENT)
        super().add(loss, size, last=last)

    def _told(self, kind: LossKind, is_fraction: bool) -> list[tuple[LossKind, bool]]:
        return self._ranks.gather([(kind, is_fraction)])

    def _sum_parts(self) -> None:
        if self._sum is not None and self._parts is not None:
            self._work = dist.all_reduce(self._parts, async_op=True)

    def _wait_for_parts(self) -> None:
        if self._work is not None:
            self._work.wait()
            self._work = None
