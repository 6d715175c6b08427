"""Modes of torch functions for the forward passes of an array: torch.vmap computes some of them otherwise than for one
member, or not at all."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from raygpu.training.torch.torch_private_api import times_mapped

WHOLE = {
    **dict.fromkeys((torch.max, torch.Tensor.max), torch.amax),
    **dict.fromkeys((torch.min, torch.Tensor.min), torch.amin),
    **dict.fromkeys((torch.median, torch.Tensor.median, torch.nanmedian, torch.Tensor.nanmedian), torch.amax),
}
"""Functions of a whole tensor, each with the operator that finds its value again among the elements of that value."""


@contextmanager
def plain_attention() -> Iterator[None]:
    """Compute attention by operators that vmap has rules for; it would run the others one by one."""
    with sdpa_kernel(SDPBackend.MATH), fast_path(enabled=False):
        yield


@contextmanager
def fast_path(*, enabled: bool) -> Iterator[None]:
    """Set whether layers of attention may evaluate by one operator for a whole layer, and restore it at the end."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(enabled)
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


class NormalizationInFloat32(TorchFunctionMode):
    """Batch and instance norms of half-precision inputs, whose scale and statistics are in float32, as in autocast.

    Such a norm computes in float32 and rounds its outputs. Under vmap, its backward pass on CUDA has no kernel for two
    dtypes (torch 2.11: "Expected running_mean to have type BFloat16 but got Float").
    """

    NORMS = (functional.batch_norm, torch.batch_norm, functional.instance_norm, torch.instance_norm)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func not in self.NORMS or not args or not _is_mixed((*args, *named.values())):
            return func(*args, **named)
        inputs, *others = args
        return func(inputs.float(), *others, **named).to(inputs.dtype)


def norms_in_float32(device: torch.device) -> AbstractContextManager[Any]:
    """Return the context in which batch norms have a backward pass, also in mixed precision."""
    mixed = device.type == "cuda" and torch.is_autocast_enabled("cuda")
    return NormalizationInFloat32() if mixed else nullcontext()


def _is_mixed(values: Any) -> bool:
    """Return whether the first tensor is in half precision, and another one in float32."""
    dtypes = [value.dtype for value in values if isinstance(value, torch.Tensor)]
    return bool(dtypes) and dtypes[0] in (torch.bfloat16, torch.float16) and torch.float32 in dtypes[1:]
