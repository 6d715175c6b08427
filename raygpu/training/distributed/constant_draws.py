"""A constant in place of random numbers of torch, so that losses that draw noise can be compared."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

NOISE = {
    *("aten::rand", "aten::rand_like", "aten::randn", "aten::randn_like"),
    *("aten::uniform_", "aten::normal_", "aten::exponential_"),
}
"""Operators that draw each number by itself, from a continuous distribution."""
CONSTANT = 0.5
CHANCES = {"aten::bernoulli", "aten::bernoulli_"}
"""Operators that draw 0 or 1 for each number by itself, as dropout does."""


class ConstantDraws(TorchDispatchMode):
    """Gives `CONSTANT` as each number that torch draws from a continuous distribution, and 1 in place of 0 or 1."""

    others = False
    """Whether something else was drawn, such as an order."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags:
            if func._schema.name in NOISE:
                return result.fill_(CONSTANT)
            if func._schema.name in CHANCES:
                return result.fill_(1)
            self.others = True
        return result
