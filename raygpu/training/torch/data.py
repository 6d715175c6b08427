"""A torch experiment's data: its place in memory, and the samples of a batch on the device."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils._pytree import tree_map

from raygpu.experiment import Arrays, Splits, named, num_samples

Tensors: TypeAlias = "torch.Tensor | dict[str, torch.Tensor]"


@dataclass(frozen=True, slots=True)
class DeviceData:
    """Splits as tensors: on the device if they fit there, otherwise in host memory."""

    home: torch.device
    train_inputs: Tensors
    train_targets: Tensors
    validation_inputs: Tensors
    validation_targets: Tensors
    num_train: int
    num_validation: int

    @classmethod
    def of(cls, splits: Splits, device: torch.device, dtype: torch.dtype | None = None) -> DeviceData:
        """Convert splits to tensors. dtype: of floating-point data; None leaves it unchanged."""
        home = home_of(splits, device)

        def at_home(part: Arrays) -> Tensors:
            """Return one part of the splits as tensors, in place and in the dtype."""
            return cast(moved(tensors(part), home), dtype)

        return cls(
            home,
            at_home(splits.train_inputs),
            at_home(splits.train_targets),
            at_home(splits.validation_inputs),
            at_home(splits.validation_targets),
            splits.num_train,
            num_samples(splits.validation_targets),
        )

    def on_device(self) -> list[torch.Tensor]:
        """Return the tensors that stay on the device."""
        parts = (self.train_inputs, self.train_targets, self.validation_inputs, self.validation_targets)
        return [tensor for part in parts for tensor in (part.values() if isinstance(part, dict) else [part])]


def home_of(splits: Splits, device: torch.device) -> torch.device:
    """Return the device if the data fits in half of its free memory, otherwise the host."""
    if device.type != "cuda":
        return device
    parts = (splits.train_inputs, splits.train_targets, splits.validation_inputs, splits.validation_targets)
    num_bytes = sum(array.nbytes for part in parts for array in named(part).values())
    free, _ = torch.cuda.mem_get_info(device)
    return device if num_bytes <= free / 2 else torch.device("cpu")


def tensors(arrays: Arrays) -> Tensors:
    """Return tensors that share the arrays' memory. `rows` and `gathered` copy out of it, so that no model can write to
    it."""
    if isinstance(arrays, Mapping):
        return {name: _tensor(array) for name, array in arrays.items()}
    return _tensor(arrays)


def _tensor(array: np.ndarray) -> torch.Tensor:
    with warnings.catch_warnings():
        # Arrays from the object store are read-only and shared by all trials of a node; models get copies of rows.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def copied(parts: Tensors) -> Tensors:
    """Copy tensors to memory of their own."""
    if isinstance(parts, dict):
        return {name: tensor.clone() for name, tensor in parts.items()}
    return parts.clone()


def copied_outputs(outputs: Any) -> Any:
    """Copy a model's outputs: a tensor, or a dict, list, tuple or dataclass of tensors that torch knows as one."""
    return tree_map(lambda value: value.clone() if isinstance(value, torch.Tensor) else value, outputs)


def moved(parts: Tensors, device: torch.device) -> Tensors:
    """Move tensors to a device."""
    if isinstance(parts, dict):
        return {name: tensor.to(device) for name, tensor in parts.items()}
    return parts.to(device)


def cast(parts: Tensors, dtype: torch.dtype | None) -> Tensors:
    """Convert floating-point tensors to another dtype; None leaves them unchanged."""
    if dtype is None:
        return parts
    if isinstance(parts, dict):
        return {name: in_precision(tensor, dtype) for name, tensor in parts.items()}
    return in_precision(parts, dtype)


def in_precision(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert a tensor to the precision of a floating-point dtype: complex numbers stay complex, whole ones
    unchanged."""
    if tensor.is_complex():
        return tensor.to(dtype.to_complex())
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def rows(parts: Tensors, chosen: torch.Tensor | slice) -> Tensors:
    """Copy the chosen samples: a model or a loss may change its arguments in place."""
    if isinstance(parts, dict):
        return {name: _rows(tensor, chosen) for name, tensor in parts.items()}
    return _rows(parts, chosen)


def _rows(tensor: torch.Tensor, chosen: torch.Tensor | slice) -> torch.Tensor:
    return tensor[chosen].clone() if isinstance(chosen, slice) else tensor[chosen]


def gathered(parts: Tensors, chosen: torch.Tensor, device: torch.device) -> Tensors:
    """Copy the samples of each member of an array to the device: (width, batch, ...) for indices (width, batch)."""
    if isinstance(parts, dict):
        return {name: _gathered(tensor, chosen).to(device) for name, tensor in parts.items()}
    return _gathered(parts, chosen).to(device)


def _gathered(tensor: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    # index_select is several times faster on a CPU than indexing with a matrix.
    return tensor.index_select(0, chosen.reshape(-1)).view(*chosen.shape, *tensor.shape[1:])
