"""Buffers that a training changes outside BatchNorm, kept alike on all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from raygpu.training.distributed.gradients import broadcast
from raygpu.training.distributed.ranks import Ranks
from raygpu.training.distributed.torch_loss_check import buffers

Size = tuple[tuple[int, ...], torch.dtype] | None
"""Shape and number type of a buffer; None of one that is not there."""


class BufferBroadcast:
    """Keeps alike, on all ranks, the buffers that training changes: each step begins with those of rank 0.

    A buffer may begin to change in any step. The ranks tell each other by a message of four bytes between their
    processors, which is under way while the optimizer steps. One that has other sizes on other ranks, as a cache of
    positions for the longest sequence so far, stays each rank's own.

    Statistics of BatchNorm, which training does not read, are rank 0's: it evaluates and saves.
    """

    def __init__(self, model: nn.Module, ranks: Ranks, group: Any) -> None:
        """group: of torch.distributed, of the ranks' processors."""
        self._ranks, self._model, self._group = ranks, model, group
        self.names: list[str] = []
        """Names of the buffers that have changed so far, the same on all ranks."""
        self.left_out: set[str] = set()
        """Names of those of them that have had other sizes on other ranks."""
        self._sizes: dict[str, Size] = {}
        self._owners = {name: model.get_submodule(name.rpartition(".")[0])._buffers for name in buffers(model)}
        self._has_stepped = False
        self._values: dict[str, torch.Tensor] = {}
        """Copies of all buffers before the first step."""
        self._before: dict[str, tuple[torch.Tensor | None, int]] = {}
        """Each buffer that has not changed yet, and its version, as this step began."""
        self._changed: list[str] = []
        """Names of the buffers that this rank's last step was the first to change, or has given another size."""
        self._told = torch.zeros(1, dtype=torch.int32)
        """Number of such buffers, of all ranks once `_work` has ended."""
        self._work: Any = None
        """The sum of `_told` over ranks, under way."""
        self.evaluated: list[str] = []
        """Names of the buffers that this rank's latest evaluation has changed."""

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Note the buffers that an evaluation writes to: one rank evaluates, and all train with them."""
        before = {name: (id(buffer), buffer._version) for name, buffer in buffers(self._model).items()}
        yield
        present = buffers(self._model)
        self.evaluated = [name for name, b in present.items() if before.get(name) != (id(b), b._version)]

    def begin_epoch(self) -> None:
        """Copy the buffers that the evaluation of rank 0 has changed to all ranks."""
        names_by_rank = self._ranks.gather([self.evaluated])
        if any(names_by_rank):
            self.add(())
        if names := self._of_one_size(names_by_rank[0]):
            present = buffers(self._model)
            broadcast([present[name] for name in names])

    def begin_step(self) -> None:
        """Copy the changing buffers of rank 0 to all ranks; before the first step, take a copy of all."""
        self.agree()
        if not self._has_stepped:
            self._values = {name: buffer.clone() for name, buffer in buffers(self._model).items()}
        if self.names:
            present = buffers(self._model)
            broadcast([present[name] for name in self.names])
        moving_names = {*self.names, *self.left_out}
        self._before = {name: self._version(name) for name in self._owners if name not in moving_names}

    def end_step(self) -> None:
        """Look for buffers that this step was the first to change; tell the other ranks, which wait for it later."""
        if not self._owners:
            return
        self._changed = [name for name, (old, version) in self._before.items() if not self._is(name, old, version)]
        if not self._has_stepped:  # by their values: some write to them in a way that torch does not count
            self._changed = [name for name, value in self._values.items() if not self._has(name, value)]
            self._has_stepped, self._values = True, {}
        self._changed += [name for name in self.names if self._size(name) != self._sizes[name]]
        if self._before or self.names:
            self._told.fill_(len(self._changed))
            self._work = dist.all_reduce(self._told, group=self._group, async_op=True)

    def agree(self) -> None:
        """Add the buffers that the last step was the first to change, on any rank."""
        if self._work is None:
            return
        self._work.wait()
        self._work = None
        if self._told.item():
            self.add([name for names in self._ranks.gather([self._changed]) for name in names])

    def add(self, names: Sequence[str]) -> None:
        """Begin each step with these buffers of rank 0, too, if they have one size; on all ranks the same."""
        every = sorted({*self.names, *names} - self.left_out)
        self.names = self._of_one_size(every)
        self.left_out |= set(every).difference(self.names)
        self._sizes = {name: self._size(name) for name in self.names}

    def _of_one_size(self, names: Sequence[str]) -> list[str]:
        """Return the names of the buffers that are as large on all ranks. All ranks call it with the same names."""
        if not names:
            return []
        sizes = self._ranks.gather([{name: self._size(name) for name in names}])
        return [name for name in names if sizes[0][name] and all(each[name] == sizes[0][name] for each in sizes)]

    def _size(self, name: str) -> Size:
        buffer, _ = self._version(name)
        return None if buffer is None else (tuple(buffer.shape), buffer.dtype)

    def _version(self, name: str) -> tuple[torch.Tensor | None, int]:
        buffer = self._owners[name][name.rpartition(".")[2]]
        return buffer, 0 if buffer is None else buffer._version

    def _has(self, name: str, value: torch.Tensor) -> bool:
        now, _ = self._version(name)
        return now is not None and torch.equal(value, now)

    def _is(self, name: str, old: torch.Tensor | None, version: int) -> bool:
        """Return whether a buffer is still the same tensor, and no one has written to it."""
        now, present = self._version(name)
        return now is old and present == version
