"""A copy of a state dict in host memory, to be written while the training goes on."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.utils._pytree import tree_map


def host_copy(state: Any) -> Any:
    """Copy the tensors and other values of nested dicts, lists and tuples to the host.

    Tensors that share memory share it in the copy too, and keep their strides, as in a file of `torch.save`.
    """
    storages: dict[tuple[torch.device, int], torch.UntypedStorage] = {}

    def copied(value: Any) -> Any:
        """Return a copy of one value."""
        if not isinstance(value, torch.Tensor):
            return copy.deepcopy(value)
        value = value.detach()
        if type(value) is not torch.Tensor or value.layout is not torch.strided or value.is_conj() or value.is_neg():
            return value.to("cpu", copy=True)
        storage = value.untyped_storage()
        key = storage.device, storage.data_ptr()
        if key not in storages:
            storages[key] = storage.clone() if storage.device.type == "cpu" else storage.cpu()
        found = torch.empty(0, dtype=value.dtype)
        return found.set_(storages[key], value.storage_offset(), value.shape, value.stride())

    return tree_map(copied, state)
