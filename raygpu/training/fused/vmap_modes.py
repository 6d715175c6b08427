"""Modes of torch functions for the forward passes of an array: torch.vmap computes some of them otherwise than for one
member, or not at all."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from raygpu.training.torch.torch_private_api import member_of, stack_of, times_mapped

WHOLE = {
    **dict.fromkeys((torch.max, torch.Tensor.max), torch.amax),
    **dict.fromkeys((torch.min, torch.Tensor.min), torch.amin),
    **dict.fromkeys((torch.median, torch.Tensor.median, torch.nanmedian, torch.Tensor.nanmedian), torch.amax),
}
"""Functions of a whole tensor, each with the operator that finds its value again among the elements of that value."""


@contextmanager
def plain_attention() -> Iterator[None]:
    """Compute attention by operators that vmap has rules for; it would run the others one by one."""
    with sdpa_kernel(SDPBackend.MATH), without_fast_path():
        yield


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Keep layers of attention, meanwhile, from evaluating by one operator for a whole layer."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class PaddedEmbedding(TorchFunctionMode):
    """Embedding lookups whose padding row gets no gradient, under vmap too.

    vmap puts the members' tables below each other and looks all members up in one table, whose gradient then leaves out
    the padding row of the first member alone. Here the rows that were looked up at the padding index are detached.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.embedding:
            return self._embedding(*args, **(kwargs or {}))
        if func is torch.embedding:
            return self._torch_embedding(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _embedding(self, input: Any, weight: Any, padding_idx: int | None = None, *args: Any, **kwargs: Any) -> Any:
        rows = functional.embedding(input, weight, None, *args, **kwargs)
        if padding_idx is None:
            return rows
        return self._detached(rows, input, padding_idx % len(weight))

    def _torch_embedding(self, weight: Any, indices: Any, padding_idx: int = -1, *args: Any, **kwargs: Any) -> Any:
        rows = torch.embedding(weight, indices, -1, *args, **kwargs)
        return rows if padding_idx < 0 else self._detached(rows, indices, padding_idx)

    def _detached(self, rows: torch.Tensor, indices: torch.Tensor, padding_idx: int) -> torch.Tensor:
        return torch.where((indices == padding_idx).unsqueeze(-1), rows.detach(), rows)


class TiedExtremes(TorchFunctionMode):
    """Largest and smallest elements and medians of a whole tensor, whose gradient is shared by all elements of that
    value, under vmap too.

    vmap computes them along one dimension, where a single one of several equal elements gets the whole gradient. So it
    does inside a torch.vmap of the model's own, which is left as it is.
    """

    def __init__(self) -> None:
        super().__init__()
        self.has_met_one = False
        """Whether any of the functions was called for a whole tensor."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        values = (*args, *(kwargs or {}).values())
        if func not in WHOLE or len(values) != 1:
            return func(*args, **(kwargs or {}))
        self.has_met_one = True
        (tensor,) = values
        if not tensor.is_floating_point() or not tensor.numel() or times_mapped(tensor) > 1:
            return func(tensor)
        again, value = WHOLE[func], func(tensor.detach())
        none = value.isnan()  # which equals no element
        among = torch.where(none, tensor.isnan(), tensor == value)
        shared = torch.where(among, tensor, 0.0).sum() / among.sum()
        others = -math.inf if again is torch.amax else math.inf
        return torch.where(none, shared, again(torch.where(among & ~none, tensor, others)))


class OwnTensors(TorchFunctionMode):
    """Gives each member its own copy of tensors that a model makes inside `torch.vmap`, so that random numbers can fill
    them.

    like: any tensor of the members, inside vmap.
    """

    MAKERS = (torch.empty, torch.zeros, torch.ones, torch.full, torch.Tensor.new_empty, torch.Tensor.new)

    def __init__(self, like: torch.Tensor) -> None:
        super().__init__()
        self._zero = torch.zeros_like(like.detach().reshape(-1)[0])

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in self.MAKERS:
            return result
        zero = self._zero.to(result.dtype)
        return result | zero if result.dtype == torch.bool else result + zero


class RaisedErrors(TorchFunctionMode):
    """Notes the errors of functions of tensors, which code of the user's may catch.

    Under vmap such an error is one of all members, and none of them need have it alone: NumPy takes no tensors of all
    members, and a matrix that cannot be decomposed is one member's.
    """

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[Exception] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except Exception as error:
            self.errors.append(error)
            raise


class MemberNorms(TorchFunctionMode):
    """Batch norms of all members as one norm of all their channels, which is each member's own.

    torch.vmap's own rule leaves scale and shift to operators after the norm, each of which reads, writes and keeps all
    activations once more. It remains the rule of instance norms, and of norms with a tensor that is not each member's
    own. Of half-precision inputs, with scale and statistics in float32 as in autocast, it has no backward pass on CUDA
    (torch 2.11: "Expected running_mean to have type BFloat16 but got Float"); those norms compute in float32 and round
    their outputs, as a norm of one member does inside.
    """

    NORMS = (functional.batch_norm, torch.batch_norm, functional.instance_norm, torch.instance_norm)

    def __init__(self) -> None:
        super().__init__()
        self.has_met_one = False
        """Whether any of the functions was called."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func not in self.NORMS:
            return func(*args, **named)
        self.has_met_one = True
        if func is functional.batch_norm and (outputs := _norm_of_all(*args, **named)) is not None:
            return outputs
        if not args or not _is_mixed((*args, *named.values())):
            return func(*args, **named)
        inputs, *others = args
        return func(inputs.float(), *others, **named).to(inputs.dtype)


def _norm_of_all(
    input: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> torch.Tensor | None:
    """Return `functional.batch_norm` of one member, computed for all; None where these are not tensors of each member.

    The running statistics of all members are updated in place.
    """
    activations = stack_of(input)
    if activations is None or input.ndim < 2 or input.numel() == input.shape[1]:  # which has no variance: an error
        return None
    stack, dim, level = activations
    of_channels: list[Any] = []
    for tensor in (running_mean, running_var, weight, bias):
        found = None if tensor is None else stack_of(tensor)
        if tensor is not None and (found is None or found[1] != 0 or not found[0].is_contiguous()):
            return None
        of_channels.append(found if found is None else found[0].flatten())
    channels = stack.movedim(dim, 1)
    outputs = functional.batch_norm(channels.flatten(1, 2), *of_channels, *args, **kwargs)
    return member_of(outputs.unflatten(1, channels.shape[1:3]), level)


def _is_mixed(values: Any) -> bool:
    """Return whether the first tensor is in half precision, and another one in float32."""
    dtypes = [value.dtype for value in values if isinstance(value, torch.Tensor)]
    return bool(dtypes) and dtypes[0] in (torch.bfloat16, torch.float16) and torch.float32 in dtypes[1:]
