"""Random numbers in the place of a torch model's outputs: see `raygpu.training.random_outputs`."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map

from raygpu.training.random_outputs import random_output


def random_outputs(outputs: Any, seed: int) -> Any:
    """Return outputs of the same structure, shapes and dtypes; what is no tensor stays as it is."""

    def drawn(leaf: Any) -> Any:
        """Return random values for one output."""
        if not isinstance(leaf, torch.Tensor):
            return leaf
        values = leaf.detach()
        values = values.float() if values.dtype in (torch.bfloat16, torch.float16) else values
        return torch.from_numpy(random_output(values.cpu().numpy(), seed)).to(leaf)

    return tree_map(drawn, outputs)
