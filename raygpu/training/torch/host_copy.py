"""A copy of a state dict in host memory, to be written while the training goes on."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import torch


def host_copy(state: Any) -> Any:
    """Copy the tensors and other values of nested dicts, lists and tuples to the host.

    Tensors that share memory share it in the copy too, and keep their strides, as in a file of `torch.save`. A state
    dict keeps the versions of its modules.
    """
    return _Copier().copied(state)


class _Copier:
    def __init__(self) -> None:
        self._storages: dict[tuple[torch.device, int], torch.UntypedStorage] = {}
        """Copies of memory blocks, by device and address."""

    def copied(self, value: Any) -> Any:
        """Return a copy of one value."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value.detach())
        if type(value) in (dict, OrderedDict):
            mapping = type(value)((key, self.copied(each)) for key, each in value.items())
            if hasattr(value, "_metadata"):
                mapping._metadata = copy.deepcopy(value._metadata)
            return mapping
        if type(value) in (list, tuple):
            return type(value)(self.copied(each) for each in value)
        return copy.deepcopy(value)

    def _tensor(self, value: torch.Tensor) -> torch.Tensor:
        if type(value) is not torch.Tensor or value.layout is not torch.strided or value.is_conj() or value.is_neg():
            return value.to("cpu", copy=True)
        storage = value.untyped_storage()
        key = storage.device, storage.data_ptr()
        if key not in self._storages:
            self._storages[key] = storage.clone() if storage.device.type == "cpu" else storage.cpu()
        tensor = torch.empty(0, dtype=value.dtype)
        return tensor.set_(self._storages[key], value.storage_offset(), value.shape, value.stride())
