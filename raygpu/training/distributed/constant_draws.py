"""A constant in place of random numbers of torch, so that losses that draw noise can be compared."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

NOISE = {f"aten::{name}" for name in ("rand", "rand_like", "randn", "randn_like", "uniform_", "normal_")}
"""Operators that draw each number by itself, from a continuous distribution."""
CONSTANT = 0.5


class ConstantDraws(TorchDispatchMode):
    """Gives `CONSTANT` as each number that torch draws from a uniform or a normal distribution."""

    others = False
    """Whether something else was drawn, such as an order, or what dropout leaves out."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags:
            if func._schema.name in NOISE:
                return found.fill_(CONSTANT)
            self.others = True
        return found
