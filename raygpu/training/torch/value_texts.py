"""Short texts of tensors, arrays and random generators, equal where their values are."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from raygpu.training.array_sample import LARGE, spread


def array_text(array: np.ndarray) -> str:
    """Return the text of a numpy array without objects; of a large one, of a sample and its place in memory."""
    if array.nbytes <= LARGE:
        return digest(array.tobytes())
    return f"{array.shape} at {hex(array.ctypes.data)}: {digest(spread(array).tobytes())}"


def tensor_text(tensor: torch.Tensor) -> str:
    """Return the text of a tensor, of a large one by a sample; the same for all that autograd has computed."""
    if tensor.requires_grad and not tensor.is_leaf:
        return "tensor"
    try:
        if tensor.nbytes > LARGE:
            tensor = spread(tensor.detach())
        values = tensor.detach().cpu().resolve_conj()
        return digest(torch.view_as_real(values).numpy().tobytes() if values.is_complex() else _bytes(values))
    except (RuntimeError, TypeError):  # a sparse one, or one that belongs to a transform that has ended
        return "tensor"


def _bytes(values: torch.Tensor) -> bytes:
    return values.contiguous().view(torch.uint8).numpy().tobytes() if values.dim() else repr(values.item()).encode()


def digest(content: bytes) -> str:
    """Return the SHA-1 of bytes, as hexadecimal digits."""
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


def generator_state(value: Any) -> Any:
    """Return the state of a random number generator; None for any other object."""
    readers: list[tuple[type, Callable[[Any], Any]]] = [
        (np.random.Generator, lambda generator: generator.bit_generator.state),
        (np.random.RandomState, lambda generator: generator.get_state(legacy=False)),
        (random.Random, lambda generator: generator.getstate()),
        (torch.Generator, lambda generator: generator.get_state().tolist()),
    ]
    return next((read(value) for kind, read in readers if isinstance(value, kind)), None)
