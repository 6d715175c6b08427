"""Trainings that want more memory than others."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import torch

from tests.models import Mlp


class Wide(Mlp):
    """Its arrays run out of memory from more than LIMIT members on, once they have taken CALLS steps.

    It counts them out of sight of the dry run, which refuses models that count.
    """

    LIMIT = 3
    CALLS = 40

    def __init__(self) -> None:
        self.count: Any = io.BytesIO().write

    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        self.count(b"1")
        calls = self.count.__self__.tell()
        rows = inputs
        while torch._C._functorch.is_batchedtensor(rows):
            rows = torch._C._functorch.get_unwrapped(rows)
        if calls > self.CALLS and rows.dim() > inputs.dim() and len(rows) > self.LIMIT:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return inputs
