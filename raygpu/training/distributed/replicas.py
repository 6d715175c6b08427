"""The copies of a model on several ranks, which have to stay alike: compared at the end of each epoch.

All ranks take the same steps by the same gradient, so that their copies are equal to the bit, but for rounding on GPUs
of unequal kind. The bits of a tensor are added up as integers, which costs one read of the model in an epoch.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from raygpu.training.distributed.buffer_broadcast import BufferBroadcast
from raygpu.training.distributed.gradients import broadcast
from raygpu.training.distributed.ranks import Ranks
from raygpu.training.distributed.torch_loss_check import buffers

ROUNDING = 1e-3
"""Largest relative difference of a parameter between ranks that may come from rounding in an epoch."""
APART = (
    "after epoch {epoch} the parameter {name} on rank {rank} is not that on rank 0 (relative difference"
    " {difference:.2g}): something changes it in another way on each device, such as an optimizer that draws random"
    " numbers by NumPy or by a generator of its own; draw them by torch's global generator in the optimizer's step, or"
    " train on one device"
)


class Replicas:
    """The copies of one model on all ranks. All ranks make the same calls."""

    def __init__(self, model: nn.Module, ranks: Ranks, moving: BufferBroadcast) -> None:
        """moving: of the buffers that training changes, which differ between ranks until the next step begins."""
        self._model, self._ranks, self._moving = model, ranks, moving
        self._parameters, self._sums = list(model.parameters()), dict[str, int]()
        self._is_written = False
        """Whether the experiment's code has written to parameters itself, as `Embedding(max_norm=...)` does: each rank
        then changes its own copy, which a check reports before the training."""
        self._reads_bits = True
        """Whether the next comparison is by values too: torch does not count writes through `Tensor.data`."""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note whether the code of the experiment, which runs meanwhile, writes to parameters."""
        reads_bits, self._reads_bits = self._reads_bits, False
        versions, bits = self._versions(), self._bits() if reads_bits else {}
        yield
        self._is_written |= versions != self._versions() or (reads_bits and bits != self._bits())

    def _versions(self) -> int:
        return sum(parameter._version for parameter in self._parameters)

    def _bits(self) -> dict[str, int]:
        return sums_of_bits(dict(self._model.named_parameters()))

    def checksum(self) -> int:
        """Return a number that is the same on all ranks if their parameters are, and the buffers that do not change."""
        self._moving.agree()
        self._reads_bits = True  # in the first step of the next epoch
        moving = {*self._moving.names, *self._moving.left_out}
        still = {name: each for name, each in buffers(self._model).items() if name not in moving}
        self._sums = self._bits() | sums_of_bits(still)
        return zlib.crc32(repr(self._sums).encode())

    def join(self, epoch: int) -> None:
        """Go on everywhere with rank 0's parameters and buffers, of which some differ by the last checksum.

        Raises ValueError if a parameter differs by more than rounding, and the experiment has not written to it.
        """
        contributions = self._ranks.gather([(self._sums, self._is_written, self._moving.evaluated)])
        sums = [each for each, _, _ in contributions]
        names = [name for name, value in sums[0].items() if any(each.get(name) != value for each in sums)]
        parameters, named_buffers = dict(self._model.named_parameters()), buffers(self._model)
        self._moving.add([name for name in names if name in named_buffers and name not in contributions[0][2]])
        differing = [name for name in names if name in parameters]
        before = {name: parameters[name].detach().clone() for name in differing}
        broadcast([parameters[name] for name in differing])
        differences = {name: _difference(before[name], parameters[name].detach()) for name in differing}
        each = self._ranks.gather([max(((value, name) for name, value in differences.items()), default=(0.0, ""))])
        difference, name, rank = max((*pair, rank) for rank, pair in enumerate(each))
        if difference > ROUNDING and not any(is_written for _, is_written, _ in contributions):
            raise ValueError(APART.format(name=name, epoch=epoch, difference=difference, rank=rank))


@torch.no_grad()
def sums_of_bits(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Return the sum of the bits of each tensor, taken as integers."""
    sums = []
    for tensor in tensors.values():
        flat = tensor.detach().contiguous().reshape(-1)
        sums.append(flat.view(torch.uint8 if tensor.element_size() % 4 else torch.int32).sum(dtype=torch.int64))
    on_host = torch.stack([each.to(sums[0].device) for each in sums]).tolist() if sums else []
    return dict(zip(tensors, on_host, strict=True))


def _difference(own: torch.Tensor, first: torch.Tensor) -> float:
    """Return how far a parameter is from that of rank 0, relative to it; 0 of one that has diverged."""
    distance, size = (float(torch.linalg.vector_norm(each.abs().double())) for each in (own - first, first))
    if not math.isfinite(size):
        return 0.0
    return distance / (size or 1.0) if math.isfinite(distance) else math.inf
