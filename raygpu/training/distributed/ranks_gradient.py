"""The gradient of one optimizer step, from the losses of a batch's parts on several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from raygpu.experiment import Sum
from raygpu.training.distributed.gradients import GradientSum
from raygpu.training.distributed.joint_batch_norm import JointNorms
from raygpu.training.distributed.ranks import Ranks
from raygpu.training.loss_kinds import LossKind
from raygpu.training.torch.experiment_optimizer import AnyOptimizer
from raygpu.training.torch.own_optimizer import OwnOptimizer
from raygpu.training.torch.several_optimizers import SeveralOptimizers
from raygpu.training.torch.step_gradient import StepGradient


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
        joint_norms: JointNorms | None = None,
    ) -> None:
        """copies: see `GradientSum`. joint_norms: of the model; None without any."""
        self._ranks, self._copies, self._joint_norms = ranks, copies, joint_norms
        self._work: Any = None
        """The sum of `_parts` over ranks, under way."""
        super().__init__(parameters, device)

    def _make_sum(self) -> Any:
        if self._ranks.world == 1:
            return None
        overlaps = False if self._joint_norms is not None else None
        return GradientSum(self._parameters, self._ranks, copies=self._copies, overlaps=overlaps)

    def _backward(self, loss: Sum, *, retain: bool = False) -> None:
        if self._joint_norms is None:
            return super()._backward(loss, retain=retain)
        value = torch.as_tensor(loss.total)
        if len(set(self._ranks.gather([value.requires_grad]))) > 1:
            reached = self._ranks.gather([self._joint_norms.reached(value) if value.requires_grad else []])
            if not value.requires_grad:
                return self._joint_norms.pass_zeros(sorted(set().union(*reached)), retain=retain)
        return super()._backward(loss, retain=retain)

    def _told(self, kind: LossKind, is_fraction: bool) -> list[tuple[LossKind, bool]]:
        return self._ranks.gather([(kind, is_fraction)])

    def _sum_parts(self) -> None:
        if self._sum is not None and self._parts is not None:
            self._work = dist.all_reduce(self._parts, async_op=True)

    def _wait_for_parts(self) -> None:
        if self._work is not None:
            self._work.wait()
            self._work = None
