"""The sum of all ranks' gradients, bucket by bucket, while the backward pass still runs.

DistributedDataParallel does the same for parameters that get their gradient through its own forward pass. Here it does
not matter where a gradient comes from: a loss may reach the model by itself, a branch may be taken by some ranks only,
and a parameter that no rank uses keeps no gradient at all, as in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from raygpu.training.distributed.ranks import Ranks
from raygpu.training.torch.optimizers import real
from raygpu.training.torch.reduction import dense
from raygpu.training.torch.torch_private_api import copy_all

FIRST_BUCKET = 2**20
"""Bytes of gradients in the first call, small so that it begins early."""
BUCKET = 25 * 2**20
"""Bytes of gradients in one call."""
ALIGNED = 16
"""Alignment of each gradient in a bucket, in numbers."""


@dataclass(slots=True)
class _Bucket:
    """Gradients of several parameters that are summed over ranks in one call."""

    parameters: list[nn.Parameter]
    flat: torch.Tensor
    """All gradients, followed by a mark for each: above 0 if any rank has that gradient."""
    views: list[torch.Tensor]
    """View of each gradient's part of `flat`; complex ones as pairs of real numbers."""
    marks: torch.Tensor
    missing: int = 0
    """Gradients of the present backward pass that have not arrived."""
    unused: list[int] = field(default_factory=list)
    """Parameters to which this rank has no gradient."""
    work: Any = None

    @classmethod
    def of(cls, parameters: list[nn.Parameter], dtype: torch.dtype) -> _Bucket:
        """Allocate a bucket for these parameters. dtype: of the sum."""
        values = [real(parameter.detach())[0] for parameter in parameters]
        starts = [0]
        for value in values:
            starts.append(starts[-1] + -(-value.numel() // ALIGNED) * ALIGNED)
        flat = torch.zeros(starts[-1] + len(values), dtype=dtype, device=values[0].device)
        views = [
            _like(value, flat[start : start + value.numel()]) for value, start in zip(values, starts, strict=False)
        ]
        return cls(parameters, flat, views, flat[starts[-1] :])

    @torch.no_grad()
    def start(self, weight: float, square: torch.Tensor | None) -> None:
        """Begin to sum this rank's gradients, each times `weight`, with those of the others.

        square: the sum of the squares of this rank's part of the sum is added to this tensor.
        """
        own_gradients = [parameter.grad for parameter in self.parameters]
        self.unused = [place for place, gradient in enumerate(own_gradients) if gradient is None]
        self.marks.fill_(1)
        for place in self.unused:
            self.views[place].zero_()
            self.marks[place].zero_()
        pairs = [(view, dense(gradient)) for view, gradient in zip(self.views, own_gradients, strict=True)
                 if gradient is not None]  # fmt: skip
        if pairs:
            views, gradients = zip(*pairs, strict=True)
            copy_all(list(views), real(*gradients))
        if weight != 1:
            self.flat.mul_(weight)
        if square is not None:
            square += self.flat[: -len(self.parameters)].float().square().sum()
        self.work = dist.all_reduce(self.flat, async_op=True)

    @torch.no_grad()
    def end(self, divisor: torch.Tensor | None, *, copies: bool) -> None:
        """Wait for the sum, divide it, and make it the parameters' gradient. copies: see `GradientSum`."""
        self.work.wait()
        self.work = None
        used_elsewhere = self.marks.tolist() if self.unused else []  # waits for the device
        if divisor is not None:
            self.flat.div_(divisor)
        for place, (parameter, view) in enumerate(zip(self.parameters, self.views, strict=True)):
            if place in self.unused and not used_elsewhere[place]:
                parameter.grad = None
                continue
            gradient = torch.view_as_complex(view) if parameter.is_complex() else view
            parameter.grad = gradient.to(parameter.dtype, copy=copies)


class GradientSum:
    """Sums the gradients of all ranks. All ranks make the same calls."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        ranks: Ranks,
        *,
        copies: bool = False,
        overlaps: bool | None = None,
    ) -> None:
        """copies: whether each gradient has memory of its own, which takes as much again; otherwise it lies in that of
        the sum, which the next step overwrites. overlaps: False where the backward pass has messages of its own, as
        SyncBatchNorm's: a rank that takes another branch would begin sums at another place among them, for which the
        ranks then wait for ever."""
        self._ranks, self._copies = ranks, copies
        self._buckets = _buckets(parameters)
        self._order = list(range(len(self._buckets)))
        """Order in which the buckets are summed: on every rank the same."""
        self._next = 0
        """Index in `_order` of the bucket whose sum begins next."""
        self._overlaps = overlaps
        """Whether sums begin during the backward pass; None before the first pass, which sets their order."""
        self._listens = self._is_first = False
        self._arrivals: list[int] = []
        """Bucket of each gradient of the first backward pass, in the order of their arrival."""
        self._weight = 1.0
        self._square: torch.Tensor | None = None
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._arrived, place))
            for place, bucket in enumerate(self._buckets)
            for parameter in bucket.parameters
        ]

    def add(self, backward: Callable[[], None] | None, weight: float, square: torch.Tensor | None) -> None:
        """Run the backward pass of the last part of a batch, and begin to sum all ranks' gradients.

        backward: None if all of it has been done. weight: factor on this rank's gradient in the sum. square: |g|^2 of
        this rank's part of the sum is added to this tensor.
        """
        self._weight, self._square, self._next = weight, square, 0
        for bucket in self._buckets:
            bucket.missing = len(bucket.parameters)
        self._is_first = self._overlaps is None and backward is not None
        if backward is not None:
            self._listens = True
            try:
                backward()
            finally:
                self._listens = False
        while self._next < len(self._buckets):
            self._start_next()

    def end(self, divisor: torch.Tensor | None = None) -> None:
        """Wait for the sums, and leave them, divided by `divisor`, as the parameters' gradients."""
        for place in self._order:
            self._buckets[place].end(divisor, copies=self._copies)
        if self._is_first:
            self._settle()

    def close(self) -> None:
        """Remove the hooks from the parameters."""
        for hook in self._hooks:
            hook.remove()

    def _arrived(self, place: int, parameter: nn.Parameter) -> None:
        """Count a gradient that was accumulated into the parameter's; begin the sum of complete buckets."""
        if not self._listens or self._overlaps is False:
            return
        bucket = self._buckets[place]
        bucket.missing -= 1
        if self._overlaps is None:
            self._arrivals.append(place)
            return
        if bucket.missing < 0:
            raise RuntimeError(
                f"a parameter of shape {tuple(parameter.shape)} got its gradient twice in one backward pass, though"
                " once in the first; checkpoints of activations need use_reentrant=False"
            )
        while self._next < len(self._order) and not self._buckets[self._order[self._next]].missing:
            self._start_next()

    def _start_next(self) -> None:
        self._buckets[self._order[self._next]].start(self._weight, self._square)
        self._next += 1

    def _settle(self) -> None:
        """Set the order of sums, after the first step, to that in which rank 0's buckets were complete.

        If a gradient came in several pieces, as of reentrant checkpoints, all sums wait for the backward pass.
        """
        last = {place: number for number, place in enumerate(self._arrivals)}
        order = sorted(self._order, key=lambda place: last.get(place, len(self._arrivals)))
        again = any(bucket.missing < 0 for bucket in self._buckets)
        contributions = self._ranks.gather([(order, again)])
        self._order = contributions[0][0]
        self._overlaps = not any(again for _, again in contributions)
        self._arrivals.clear()


def broadcast_initial_state(model: nn.Module, ranks: Ranks, group: Any = None) -> None:
    """Copy the parameters and buffers of rank 0 to all ranks. Raises ValueError if the models differ in shape.

    group: of torch.distributed, which takes tensors of the model's device; by default that of all ranks' devices.
    """
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    shapes = {name: (tuple(tensor.shape), str(tensor.dtype)) for name, tensor in tensors.items()}
    for rank, other in enumerate(ranks.gather([shapes])):
        if other != shapes:
            names = sorted({name for name, _ in set(shapes.items()) ^ set(other.items())})
            raise ValueError(f"model(hp) made another model on rank {rank}: see {', '.join(names[:3])}")
    broadcast(tensors.values(), group)


@torch.no_grad()
def broadcast(tensors: Any, group: Any = None) -> None:
    """Copy these tensors of rank 0, of any dtype, to all ranks, exactly. group: see `broadcast_initial_state`."""
    for tensor in tensors:
        sent = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        dist.broadcast(sent, 0, group)
        tensor.copy_(sent.view(tensor.dtype).view(tensor.shape))


def _buckets(parameters: Sequence[nn.Parameter]) -> list[_Bucket]:
    """Cut the parameters into buckets in reverse, roughly the order of a backward pass; each of one dtype and
    device."""
    buckets: list[_Bucket] = []
    open_: dict[Any, tuple[list[nn.Parameter], int]] = {}
    for parameter in reversed(parameters):
        kind = _sum_type(parameter), parameter.device
        members, size = open_.pop(kind, ([], 0))
        members.append(parameter)
        size += parameter.numel() * parameter.element_size()
        if size >= (BUCKET if buckets else FIRST_BUCKET):
            buckets.append(_Bucket.of(members, kind[0]))
        else:
            open_[kind] = members, size
    return buckets + [_Bucket.of(members, kind[0]) for kind, (members, _) in open_.items()]


def _sum_type(parameter: nn.Parameter) -> torch.dtype:
    """Return the dtype of a gradient's sum: gloo does not sum half precision well, and complex numbers are pairs."""
    dtype = parameter.dtype.to_real()
    half = dtype.itemsize < 4 and dist.get_backend() == "gloo"
    return torch.float32 if half else dtype


def _like(value: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
    """Return a view of flat memory with a dense tensor's shape and memory order."""
    if value.is_contiguous() or not _is_dense(value):
        return flat.view(value.shape)
    return flat.as_strided(value.shape, value.stride(), flat.storage_offset())


def _is_dense(value: torch.Tensor) -> bool:
    """Return whether a tensor is a permutation of contiguous memory, as channels_last is."""
    step = 1
    for stride, size in sorted(zip(value.stride(), value.shape, strict=True)):
        if size != 1 and stride != step:
            return False
        step *= size
    return True
