"""Memory that a training step on a CPU keeps: what it holds all the time, and the activations at their peak.

A CPU's memory is that of a process, which tells little of a stage. What autograd saves is counted instead, each memory
block once, from the moment it is saved to the moment it is freed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch


class StepMemory:
    """Notes the memory blocks of the tensors that autograd saves for the backward pass."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        """Number of saved tensors by the memory block that they lie in."""
        self._sizes: dict[int, int] = {}
        self._bytes = self._peak = 0
        self._at_peak: dict[int, int] = {}
        """Bytes of the blocks that were saved when they were most."""

    def num_bytes(self, held: Iterable[torch.Tensor]) -> int:
        """Return the bytes at the peak together with those of tensors that stay, such as parameters."""
        return sum((self._at_peak | {_block(tensor): _size(tensor) for tensor in held}).values())

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what is saved inside the context."""
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: _Saved(tensor, self), lambda saved: saved.tensor):
            yield

    def add(self, tensor: torch.Tensor) -> int:
        """Take in a saved tensor; return its memory block."""
        block = _block(tensor)
        self._counts[block] += 1
        if self._counts[block] == 1:
            self._sizes[block] = _size(tensor)
            self._bytes += self._sizes[block]
            if self._bytes > self._peak:
                self._peak, self._at_peak = self._bytes, dict(self._sizes)
        return block

    def remove(self, block: int) -> None:
        """Forget a saved tensor of this memory block."""
        self._counts[block] -= 1
        if not self._counts[block]:
            self._bytes -= self._sizes.pop(block)


class _Saved:
    """A saved tensor, which tells when autograd lets it go."""

    def __init__(self, tensor: torch.Tensor, memory: StepMemory) -> None:
        self.tensor = tensor.detach()  # the tensor itself may be the output of the node that saves it: a cycle
        self._memory, self._place = memory, memory.add(tensor)

    def __del__(self) -> None:
        self._memory.remove(self._place)


def _block(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if not tensor.is_sparse else id(tensor)


def _size(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes() if not tensor.is_sparse else 0
