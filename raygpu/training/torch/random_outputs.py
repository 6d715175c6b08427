"""Other numbers in the place of a torch model's outputs: see `raygpu.training.random_outputs`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_map

from raygpu.training.random_outputs import SEEDS

DRAWN = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
"""Dtypes of random numbers that torch draws on every processor."""


def random_outputs(outputs: Any, seed: int) -> Any:
    """Return outputs of the same structure, shapes and dtypes; what is no dense tensor stays as it is."""

    def drawn(leaf: Any) -> Any:
        """Return random values for one output."""
        if not isinstance(leaf, torch.Tensor) or leaf.is_nested or leaf.layout is not torch.strided:
            return leaf
        draw = torch.Generator().manual_seed(seed + len(SEEDS) * leaf.numel())
        if not leaf.is_floating_point() and not leaf.is_complex():
            return leaf.detach()[torch.randperm(len(leaf), generator=draw).to(leaf.device)] if leaf.dim() else leaf
        dtype = leaf.dtype if leaf.dtype in DRAWN else torch.float32
        return torch.randn(leaf.shape, dtype=dtype, generator=draw).to(leaf)

    return tree_map(drawn, outputs)


def substitutes(outputs: Any, targets: Any, seeds: Iterable[int]) -> Iterator[Any]:
    """Yield outputs of the same structure, shapes and dtypes: right ones if targets are class indices, and random ones.

    Random numbers for many classes are right for hardly any sample.
    """
    if isinstance(outputs, torch.Tensor) and isinstance(targets, torch.Tensor):
        yield from _right_outputs(outputs, targets)
    for seed in seeds:
        yield random_outputs(outputs, seed)


def _right_outputs(outputs: torch.Tensor, targets: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield outputs with the largest number at each target's class: in axis 1, and in the last one."""
    if targets.is_floating_point() or targets.is_complex() or outputs.dim() < 2:
        return
    for axis in dict.fromkeys((1, outputs.dim() - 1)):
        shape = outputs.select(axis, 0).shape
        if targets.numel() == shape.numel():
            labels = targets.long().clamp(0, outputs.shape[axis] - 1).reshape(shape).unsqueeze(axis)
            yield torch.zeros(outputs.shape, dtype=outputs.dtype).scatter_(axis, labels, 1)
