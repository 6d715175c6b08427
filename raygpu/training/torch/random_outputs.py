"""Other numbers in the place of a torch model's outputs: see `raygpu.training.random_outputs`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.functional import one_hot
from torch.utils._pytree import tree_map

from raygpu.training.random_outputs import SEEDS, random_output


def random_outputs(outputs: Any, seed: int) -> Any:
    """Return outputs of the same structure, shapes and dtypes; what is no dense tensor stays as it is."""

    def drawn(leaf: Any) -> Any:
        """Return random values for one output."""
        if not isinstance(leaf, torch.Tensor) or leaf.is_nested or leaf.layout is not torch.strided:
            return leaf
        values = leaf.detach().resolve_conj().resolve_neg()
        if values.is_floating_point() and values.dtype != torch.float64:
            values = values.float()  # NumPy has no bfloat16
        return torch.from_numpy(random_output(values.cpu().numpy(), seed)).to(leaf)

    return tree_map(drawn, outputs)


def substitutes(outputs: Any, targets: Any) -> Iterator[Any]:
    """Yield outputs of the same structure, shapes and dtypes: right ones if targets are class indices, and random ones.

    Random numbers for many classes are right for hardly any sample.
    """
    if isinstance(outputs, torch.Tensor) and isinstance(targets, torch.Tensor):
        yield from _right_outputs(outputs, targets)
    for seed in SEEDS:
        yield random_outputs(outputs, seed)


def _right_outputs(outputs: torch.Tensor, targets: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield outputs with the largest number at each target's class: in axis 1, and in the last one."""
    if targets.is_floating_point() or targets.is_complex() or outputs.dim() < 2:
        return
    for axis in dict.fromkeys((1, outputs.dim() - 1)):
        shape = outputs.movedim(axis, -1).shape
        if targets.numel() == shape[:-1].numel():
            labels = targets.long().clamp(0, shape[-1] - 1).reshape(shape[:-1])
            yield one_hot(labels, shape[-1]).movedim(-1, axis).to(outputs)
