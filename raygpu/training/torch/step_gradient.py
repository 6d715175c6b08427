"""The gradient of one optimizer step, from the losses of a batch's parts.

A plain loss is a mean over samples: each part's counts by its samples before its gradient is computed, so that hooks
see the scale of the whole batch. A `Mean` has a numerator and a denominator that add up over the parts, and is divided
when all are known; a `Sum` is not divided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
from torch import nn

from raygpu.experiment import Mean, Sum
from raygpu.training.loss_kinds import IN_WORDS, LossKind, loss_kind
from raygpu.training.torch.reduction import backward, dense, divisor

Gradients = list[torch.Tensor | None]


class StepGradient:
    """Computes the gradient of a step: `begin`, `add` for each part, `end`."""

    def __init__(self, parameters: Sequence[nn.Parameter], device: torch.device) -> None:
        """parameters: of the optimizer; those that it takes in before an `add` count from that part on."""
        self._parameters, self._device = parameters, device
        self._sum = self._make_sum()
        self._kind: LossKind | None = None
        self._is_fraction = False
        """Whether the denominator of a `Mean` has a gradient too, as in the Dice loss."""
        self._own, self._share = 1, 1.0
        self._parts_added = 0
        self._square: torch.Tensor | None = None
        self._parts: torch.Tensor | None = None
        """Numerator and denominator of a `Mean` so far."""
        self._numerators: Gradients = []
        self._denominators: Gradients = []
        for parameter in parameters:
            parameter.grad = None

    def _make_sum(self) -> Any:
        """Return what sums the gradients over several ranks; None in one process."""
        return None

    @property
    def has_square(self) -> bool:
        """Whether |g|^2 of this process' part is measured and depends on its samples: the loss is a mean over them."""
        return self._kind == "scalar"

    def begin(self, own: int, share: float = 1.0, square: torch.Tensor | None = None) -> None:
        """Begin a step. own: this process' samples. share: the weight of their mean gradient in the batch's.

        square: |g|^2 of this process' part of the batch's gradient, which is its mean gradient times the share, is
        added to this tensor if the loss is a plain number.
        """
        self._own, self._share, self._square = own, share, square
        self._parts, self._parts_added = None, 0
        self._numerators, self._denominators = [], []

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Keep the gradient of earlier parts from a training step, which may read and drop gradients itself."""
        if not self._parts_added:
            yield
            return
        earlier = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        yield
        for parameter, gradient in zip(self._parameters, earlier, strict=True):
            if gradient is not None:
                parameter.grad = _added(gradient, parameter.grad)

    def add(self, loss: Any, size: int, *, last: bool) -> None:
        """Take in the loss of a part, of `size` of this process' samples; with the last one, ranks begin to sum."""
        self._check(loss)
        self._parts_added += 1
        if isinstance(loss, Mean):
            if last and size == self._own and self._sum is None:
                return backward(loss)  # the whole batch at once
            return self._add_mean(loss, last=last)
        if isinstance(loss, Sum):
            return self._run(partial(self._backward, loss), 1.0, None, last=last)
        share = _rounded_share(self._share, loss)
        part = partial(backward, loss, size / self._own * share)
        return self._run(part, self._share / share, self._square, last=last)

    def end(self) -> None:
        """Wait until the parameters hold the gradient of the whole batch."""
        self._wait_for_parts()
        if self._is_fraction and self._parts is not None:
            self._combine()
            if self._sum is not None:
                self._sum.add(None, 1.0, None)
                self._sum.end()
            return
        weight = None if self._parts is None else divisor(self._parts[1])
        if self._sum is not None:
            self._sum.end(weight)
            return
        for parameter in self._parameters:
            if parameter.grad is not None and self._parts_added > 1:
                parameter.grad = dense(parameter.grad)
                if weight is not None:
                    parameter.grad.div_(weight)

    def close(self) -> None:
        """Remove the hooks from the parameters."""
        if self._sum is not None:
            self._sum.close()

    def _check(self, loss: Any) -> None:
        """Raise TypeError if the kind of the loss changes, or differs between ranks: they would wait for each other for
        ever."""
        kind = loss_kind(loss)
        is_fraction = isinstance(loss, Mean) and isinstance(loss.weight, torch.Tensor) and loss.weight.requires_grad
        if self._kind is None:
            self._kind = kind
            rank_kinds = self._told(kind, is_fraction)
            self._is_fraction = any(each for _, each in rank_kinds)
            if len({each for each, _ in rank_kinds}) > 1:
                kinds = ", ".join(f"{IN_WORDS[each]} on rank {rank}" for rank, (each, _) in enumerate(rank_kinds))
                raise TypeError(f"loss() returned {kinds}; it has to be the same for every batch")
        elif kind != self._kind:
            raise TypeError(
                f"loss() returned {IN_WORDS[kind]}, and {IN_WORDS[self._kind]} before; it has to be the same for every"
                " batch"
            )
        elif is_fraction and not self._is_fraction:
            raise TypeError("loss() returned a Mean whose weight has a gradient, and none before")

    def _told(self, kind: LossKind, is_fraction: bool) -> list[tuple[LossKind, bool]]:
        """Return the kind of each rank's loss, and whether it has a denominator with a gradient."""
        return [(kind, is_fraction)]

    def _sum_parts(self) -> None:
        """Begin to sum the numerators and denominators of all ranks."""

    def _wait_for_parts(self) -> None:
        """Wait until `_parts` are those of all ranks."""

    def _add_mean(self, loss: Mean, *, last: bool) -> None:
        values = (torch.as_tensor(each, device=self._device).detach().double().reshape(()) for each in
                  (loss.total, loss.weight))  # fmt: skip
        parts = torch.stack(list(values))
        self._parts = parts if self._parts is None else self._parts + parts
        if last:
            self._sum_parts()
        if not self._is_fraction:
            return self._run(partial(self._backward, Sum(loss.total)), 1.0, None, last=last)
        self._numerators = self._collected(partial(self._backward, Sum(loss.total), retain=True), self._numerators)
        self._denominators = self._collected(partial(self._backward, Sum(loss.weight)), self._denominators)

    def _backward(self, loss: Sum, *, retain: bool = False) -> None:
        """Run the backward pass of a sum, or of a part of a `Mean`. retain: see `reduction.backward`."""
        backward(loss, retain=retain)

    def _run(self, backward: Callable[[], None], weight: float, square: torch.Tensor | None, *, last: bool) -> None:
        if last and self._sum is not None:
            self._sum.add(backward, weight, square)
        else:
            backward()

    def _collected(self, backward: Callable[[], None], earlier: Gradients) -> Gradients:
        """Add the gradients of a backward pass to earlier ones; the parameters keep none."""
        backward()
        gradients = [None if parameter.grad is None else dense(parameter.grad) for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        return [_added(one, other) for one, other in zip_longest(earlier, gradients)]  # one may be unfrozen since

    def _combine(self) -> None:
        """Set this process' part of the gradient of T / W: dT / W - T dW / W^2, with T and W of the whole batch."""
        assert self._parts is not None
        total, weight = self._parts[0], divisor(self._parts[1])
        for parameter, above, below in zip(self._parameters, self._numerators, self._denominators, strict=True):
            above = None if above is None else above / weight.to(above.dtype.to_real())
            factor = -total / weight**2
            below = None if below is None else below * factor.to(below.dtype.to_real())
            parameter.grad = _added(above, below)


def _added(one: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor | None:
    """Add two gradients, of which one may be missing, or be sparse as that of `Embedding(sparse=True)`."""
    if one is None or other is None:
        return other if one is None else one
    if one.is_sparse != other.is_sparse:
        return dense(one) + dense(other)
    return one + other


def _rounded_share(share: float, loss: Any) -> float:
    """Return a share as a loss in bfloat16 or float16 can hold it; the summed gradient is multiplied by the rest of it,
    share / this."""
    is_half = isinstance(loss, torch.Tensor) and loss.dtype in (torch.bfloat16, torch.float16)
    return float(torch.tensor(share, dtype=loss.dtype)) if is_half else share
