"""Losses and metrics of a batch as numerator and denominator, so that batches and parts of them add up exactly."""

from __future__ import annotations

from typing import Any

import torch

from raygpu.experiment import Mean, Sum


def as_parts(value: Any, count: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Numerator and denominator of a loss or metric of `count` samples: two float64 scalars, detached.

    A number is a mean over the samples. A `Sum` has the denominator 0: see `ratio`.
    """
    if isinstance(value, Mean):
        return _double(value.total, device), _double(value.weight, device)
    if isinstance(value, Sum):
        return _double(value.total, device), torch.zeros((), dtype=torch.float64, device=device)
    return _double(value, device) * count, torch.full((), count, dtype=torch.float64, device=device)


def ratio(total: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """What added parts come to: their mean, or their sum where the denominator is 0. Of any shape."""
    return total / torch.where(weight == 0, 1.0, weight)


def objective(loss: Any) -> torch.Tensor:
    """The scalar whose gradient an optimizer step takes."""
    if isinstance(loss, Mean):
        weight = torch.as_tensor(loss.weight, device=loss.total.device).detach()
        return loss.total / torch.where(weight == 0, 1, weight)
    return loss.total if isinstance(loss, Sum) else loss


def _double(value: Any, device: torch.device) -> torch.Tensor:
    return torch.as_tensor(value, device=device).detach().double()
