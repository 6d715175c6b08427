"""The loss scales of an array in fp16, one for each member, by the rule of torch.amp.GradScaler.

Nothing waits for the device: a member whose gradient is not finite keeps what it had before the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from raygpu.training.fused.tile import Stacked
from raygpu.training.loss_scaling import BACKOFF, GROWTH, GROWTH_STEPS, INITIAL_SCALE, LOWEST_SCALE
from raygpu.training.torch.loss_scale import scaler_state

SCALE, GROWTH_TRACKER, SKIPPED = "scale", "growth_tracker", "skipped"
"""Names in a state: the loss scales, the steps since each has changed, and the steps that each member has left out."""

CALMER = 2.0**-8
"""Factor on the loss scale of steps that are compared."""


def new_scales(width: int, device: torch.device) -> Stacked:
    """Return the state before the first step: tensors of shape (width,)."""
    return {
        SCALE: torch.full((width,), INITIAL_SCALE, device=device),
        GROWTH_TRACKER: torch.zeros(width, dtype=torch.int64, device=device),
        SKIPPED: torch.zeros(width, dtype=torch.int64, device=device),
    }


def scaled(losses: torch.Tensor, scales: Stacked) -> torch.Tensor:
    """Return the losses, of all members or of one, times their scales; without scales, the losses."""
    return losses * scales[SCALE] if scales else losses


def unscaled(gradients: Stacked, scales: Stacked) -> tuple[Stacked, torch.Tensor]:
    """Return the gradients divided by each member's scale, and whether all of a member's are finite, (width,)."""
    finite = torch.stack([g.reshape(len(g), -1).isfinite().all(dim=1) for g in gradients.values()]).all(dim=0)
    inverse = scales[SCALE].reciprocal()
    return {name: g * rows(inverse, g).to(g.dtype) for name, g in gradients.items()}, finite


def undo(stacks: Sequence[Stacked], before: Sequence[Stacked], finite: torch.Tensor) -> None:
    """Give the members without a finite gradient what they had before the step, in place."""
    for stack, old in zip(stacks, before, strict=True):
        for name, tensor in stack.items():
            tensor.copy_(torch.where(rows(finite, tensor), tensor, old[name]))


def adapt(scales: Stacked, finite: torch.Tensor) -> None:
    """Change the scales after a step, in place."""
    grown = scales[GROWTH_TRACKER] + 1
    grows = finite & (grown == GROWTH_STEPS)
    larger = scales[SCALE] * GROWTH
    scale = torch.where(grows & larger.isfinite(), larger, scales[SCALE])
    scales[SCALE].copy_(torch.where(finite, scale, scales[SCALE] * BACKOFF))
    scales[GROWTH_TRACKER].copy_(torch.where(finite & ~grows, grown, 0))
    scales[SKIPPED].add_(~finite)


def calm(scales: Stacked) -> None:
    """Lower the scales of a copy that is compared with another, so that its steps do not overflow; its earlier steps
    count as taken."""
    if scales:
        scales[SCALE].mul_(CALMER)
        scales[SKIPPED].zero_()


def reported(losses: torch.Tensor, scales: Stacked) -> torch.Tensor:
    """Return the losses of an epoch, (width,); NaN where gradients are never finite: see `LOWEST_SCALE`."""
    if not scales:
        return losses
    return torch.where(scales[SCALE] < LOWEST_SCALE, torch.nan, losses)


def member_scale(own: Stacked) -> dict[str, Any]:
    """Return the state of one member, tensors of shape (), as its training alone saves it."""
    return scaler_state(own[SCALE].item(), int(own[GROWTH_TRACKER]))


def write_scale(scales: Stacked, place: int, state: Mapping[str, Any], skipped: int) -> None:
    """Write a state of a training alone into a member's row. skipped: steps that it has left out."""
    scales[SCALE][place] = state["scale"]
    scales[GROWTH_TRACKER][place] = state["_growth_tracker"]
    scales[SKIPPED][place] = skipped


def rows(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Shape a value for each member as rows of a stacked tensor."""
    return values.view(-1, *[1] * (like.dim() - 1))
