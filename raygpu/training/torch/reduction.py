"""Losses and metrics of a batch as numerator and denominator, so that batches and parts of them add up exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from raygpu.experiment import Mean, Sum


def as_parts(value: Any, count: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return numerator and denominator of a loss or metric of `count` samples: two float64 scalars, detached.

    A number is a mean over the samples. A `Sum` has the denominator 0: see `ratio`.
    """
    if isinstance(value, Mean):
        return _number(value.total, device).double(), _number(value.weight, device).double()
    if isinstance(value, Sum):
        return _number(value.total, device).double(), torch.zeros((), dtype=torch.float64, device=device)
    return _number(value, device).double() * count, torch.full((), count, dtype=torch.float64, device=device)


def divisor(weight: torch.Tensor) -> torch.Tensor:
    """Return a denominator, with 1 in place of 0."""
    return torch.where(weight == 0, 1, weight)


def ratio(total: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the value of added parts, of any shape: a mean, or a sum where the denominator is 0."""
    return total / divisor(weight)


def objective(loss: Any) -> torch.Tensor:
    """Return the scalar whose gradient an optimizer step takes."""
    if not isinstance(loss, Mean | Sum):
        return loss
    total = torch.as_tensor(loss.total)
    return total / divisor(torch.as_tensor(loss.weight, device=total.device)) if isinstance(loss, Mean) else total


def backward(loss: Any, share: float = 1.0, *, retain: bool = False) -> None:
    """Compute the gradient of a result of `loss`; a `Mean` or `Sum` in which no sample counts has none.

    share: weight of this gradient in that of a step. retain: whether the same forward pass has another gradient to
    come. Raises TypeError and ValueError for what is no scalar tensor.
    """
    value = objective(loss)
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"the loss is a {type(value).__name__}; a scalar tensor is wanted, as losses.mean()")
    if value.numel() != 1:
        raise ValueError(
            f"loss() returned a tensor of shape {tuple(value.shape)}; a scalar is wanted, as losses.mean()"
        )
    if value.requires_grad or not isinstance(loss, Mean | Sum):
        (value if share == 1.0 else value * share).backward(retain_graph=retain)


def dense(gradient: torch.Tensor) -> torch.Tensor:
    """Return a sparse gradient, as of `Embedding(sparse=True)`, as a dense one; others unchanged."""
    return gradient.to_dense() if gradient.is_sparse else gradient


def clip_gradients(parameters: Sequence[torch.Tensor], norm: float) -> torch.Tensor:
    """Scale gradients down so that their norm, of all together, is at most `norm`; return the norm before.

    Sparse gradients become dense, and conjugates in their memory's place, as torch clips no others.
    """
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad = dense(parameter.grad).resolve_conj()
    return torch.nn.utils.clip_grad_norm_(parameters, norm)


def packed(value: Any) -> torch.Tensor:
    """Pack a loss or metric into one tensor, for `torch.vmap`: a scalar, or `(total, weight)` of a `Mean` or `Sum`, in
    float64."""
    if isinstance(value, Mean | Sum):
        total = _number(value.total).double()
        weight = _number(value.weight) if isinstance(value, Mean) else torch.zeros_like(total)
        return torch.stack([total, weight.to(total)])
    return _number(value)


TurnLosses = dict[str, torch.Tensor]
"""The mean loss of each optimizer's turns in a batch, by the optimizers' names."""


class Accumulator:
    """Sum of one loss or metric over batches.

    shape: () for one model, (width,) for the members of an array. finite_only: whether a batch counts only if its
    value is finite, as of losses in fp16, which leaves out the steps of the others; without any, the sum is NaN.
    """

    def __init__(self, device: torch.device, shape: tuple[int, ...] = (), *, finite_only: bool = False) -> None:
        self._total = torch.zeros(shape, dtype=torch.float64, device=device)
        self._weight: torch.Tensor | None = None
        self._count = 0
        self._finite = torch.zeros(shape, dtype=torch.bool, device=device) if finite_only else None
        """Whether a value was finite."""

    def add(self, value: Any, count: int) -> None:
        """Add a result of `loss` or a metric, of a batch of `count` samples."""
        if isinstance(value, Mean | Sum):
            self._add(*as_parts(value, count, self._total.device))
        else:
            self._add_mean(_number(value), count)

    def add_packed(self, values: torch.Tensor, count: int) -> None:
        """Add the `packed` results of all members: (width,) or (width, 2). count: samples of the batch."""
        if values.dim() > self._total.dim():
            self._add(*values.double().unbind(-1))
        else:
            self._add_mean(values, count)

    def _add(self, total: torch.Tensor, weight: torch.Tensor) -> None:
        if self._finite is not None:
            finite = total.isfinite() & weight.isfinite()
            self._finite |= finite
            total, weight = torch.where(finite, total, 0), torch.where(finite, weight, 0)
        self._total += total
        self._weight = weight.clone() if self._weight is None else self._weight + weight

    def _add_mean(self, values: torch.Tensor, count: int) -> None:
        floating = values if values.is_floating_point() else values.double()
        if self._finite is not None:
            total = floating.to(self._total.device).double() * count
            return self._add(total, torch.full_like(total, count))
        self._total.add_(floating.to(self._total.device), alpha=count)
        self._count += count
        return None

    def parts(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return numerator and denominator over all batches so far, float64, on the device: see `ratio`."""
        if self._finite is not None and self._weight is not None:
            return torch.where(self._finite, self._total, torch.nan), self._weight
        weight = torch.zeros_like(self._total) if self._weight is None else self._weight
        return self._total, weight + self._count

    def value(self) -> torch.Tensor:
        """Return the mean or sum over all batches so far, float64, on the device."""
        return ratio(*self.parts())


class EpochLosses:
    """The training losses of an epoch: of one loss a batch, or of several optimizers, whose losses add up."""

    def __init__(self, device: torch.device, *, finite_only: bool) -> None:
        """finite_only: see `Accumulator`."""
        self._device, self._finite_only = device, finite_only
        self._whole = Accumulator(device, finite_only=finite_only)
        self._by_name: dict[str, Accumulator] = {}

    def add(self, loss: Any, count: int) -> None:
        """Add the losses of a batch of `count` samples, or of a part of one: a result of `loss`, or `TurnLosses`."""
        if not isinstance(loss, dict):
            return self._whole.add(loss, count)
        self._whole.add(sum(loss.values()), count)
        for name, each in loss.items():
            if name not in self._by_name:
                self._by_name[name] = Accumulator(self._device, finite_only=self._finite_only)
            self._by_name[name].add(each, count)
        return None

    def parts(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return numerator and denominator of the loss: see `Accumulator.parts`."""
        return self._whole.parts()

    def by_name(self) -> dict[str, tuple[float, float]]:
        """Return numerator and denominator of each optimizer's loss; empty with one."""
        loss_parts = {name: each.parts() for name, each in self._by_name.items()}
        return {name: (total.item(), weight.item()) for name, (total, weight) in loss_parts.items()}

    def value(self) -> float:
        """Return the mean loss so far; it waits for the device."""
        return self._whole.value().item()


def added_turns(
    one: Mapping[str, tuple[float, float]], other: Mapping[str, tuple[float, float]]
) -> dict[str, tuple[float, float]]:
    """Add the numerators and denominators of several optimizers' losses, by name."""
    both = {name: (one.get(name, (0.0, 0.0)), other.get(name, (0.0, 0.0))) for name in {**one, **other}}
    return {name: (mine[0] + others[0], mine[1] + others[1]) for name, (mine, others) in both.items()}


def turn_metrics(losses: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Return the metrics of several optimizers' losses. losses: numerator and denominator of each, by name."""
    return {f"train/{name}_loss": total / (weight or 1.0) for name, (total, weight) in losses.items()}


def _number(value: Any, device: torch.device | None = None) -> torch.Tensor:
    """Return a loss, a metric or a part of one as a scalar tensor, detached; a float of Python's keeps its precision.

    Raises ValueError for several numbers.
    """
    dtype = torch.float64 if isinstance(value, float) else None
    number = torch.as_tensor(value, dtype=dtype, device=device).detach()
    if number.numel() != 1:
        raise ValueError(f"a loss or metric has shape {tuple(number.shape)}; a scalar is wanted: its mean")
    return number.reshape(())
