"""Number of members that a CPU evaluates at once, by the size of what their layers pass on.

Values that do not fit into the processor's caches are written to memory and read again between two layers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from raygpu.training.torch.torch_private_api import times_mapped

CACHED_BYTES = 8 * 2**20
"""Size of the largest tensor of an evaluation at which two cores evaluated 256 small networks the fastest, nearly:
experiments/benchmarks/evaluation_width.py."""


class LargestTensor(TorchFunctionMode):
    """Notes the size of the largest tensor that an operator inside returns for one member of a `torch.vmap`.

    What all members share, as a batch of samples, is not counted: it does not grow with them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 1

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [value for value in tree_leaves(result) if isinstance(value, torch.Tensor) and times_mapped(value)]
        self.num_bytes = max([self.num_bytes, *(tensor.numel() * tensor.element_size() for tensor in tensors)])
        return result

    @property
    def members(self) -> int:
        """Number of members to evaluate at once."""
        return max(1, CACHED_BYTES // self.num_bytes)
