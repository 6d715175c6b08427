"""Traits of a model's parameters and buffers on which an array, a shard or a split batch depends: frozen ones, hooks on
gradients, and memory that two of them share."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from itertools import combinations

import torch
from torch import nn

PLAIN = (torch.Tensor, nn.Parameter, nn.Buffer)
"""Kinds of tensors with memory of their own; layers that are not made yet have none."""


def frozen(model: nn.Module) -> dict[str, bool]:
    """Return which parameters require no gradient, by name."""
    return {name: not parameter.requires_grad for name, parameter in model.named_parameters()}


def changed_freezing(before: Mapping[str, bool], model: nn.Module) -> str | None:
    """Return a text that names the first parameter which is frozen or unfrozen since `before`; None without one."""
    now = frozen(model)
    changed = (name for name, was in before.items() if name in now and now[name] != was)
    return next((f"requires_grad of {name}" for name in changed), None)


def hooked_parameter(model: nn.Module) -> str | None:
    """Return the name of the first parameter with a hook on its gradient; None without one."""
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            return name
    return None


def hooked(model: nn.Module) -> str | None:
    """Return a line that names the first parameter or module with a hook on its gradient; None without one."""
    if (parameter := hooked_parameter(model)) is not None:
        return f"the parameter {parameter} has a hook"
    for name, module in model.named_modules():
        if module._backward_hooks or module._backward_pre_hooks:
            return f"the module {name or type(module).__name__} has a backward hook"
    return None


def sharing(model: nn.Module) -> str | None:
    """Return a line that names the first two parameters or buffers that are different tensors in the same memory; None
    without any.

    A step that writes to one of them changes the other. In an array each of the two has memory of its own.
    """
    by_memory: dict[int, list[tuple[str, torch.Tensor]]] = defaultdict(list)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if type(tensor) in PLAIN and tensor.layout == torch.strided and tensor.numel():
            by_memory[tensor.untyped_storage().data_ptr()].append((name, tensor))
    for group in by_memory.values():
        for (one, first), (other, second) in combinations(group, 2):
            if first is not second and _overlap(first, second):
                return f"{one} and {other} are different tensors in the same memory: a step changes both by either"
    return None


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors of one storage may have an element in common: not where one ends before the other
    begins, or where both step over the other's elements, as real and imaginary parts do."""
    (start, end), (first, last) = _span(one), _span(other)
    if end <= first or last <= start or one.dtype != other.dtype:
        return start < last and first < end
    step = math.gcd(*(stride for t in (one, other) for n, stride in zip(t.shape, t.stride(), strict=True) if n > 1))
    return (start - first) % (max(step, 1) * one.element_size()) == 0


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first address of a tensor's memory, and the one behind its last element."""
    places = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return tensor.data_ptr(), tensor.data_ptr() + places * tensor.element_size()
