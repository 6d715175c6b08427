"""Buffers that a training changes outside BatchNorm, kept alike on all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from raygpu.training.distributed.gradients import broadcast
from raygpu.training.distributed.ranks import Ranks
from raygpu.training.distributed.torch_loss_check import buffers


class BufferBroadcast:
    """Keeps alike, on all ranks, the buffers that training changes: each step begins with those of rank 0.

    Statistics of BatchNorm, which training does not read, are rank 0's: it evaluates and saves.
    """

    def __init__(self, model: nn.Module, ranks: Ranks) -> None:
        self._ranks, self._model = ranks, model
        self._before: dict[str, torch.Tensor] | None = None
        self._names: list[str] | None = None
        """Names of the buffers that change, collected in the first step; None before it."""
        self._evaluated: list[str] = []
        """Names of the buffers that this rank's latest evaluation has changed."""

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Note the buffers that an evaluation writes to: one rank evaluates, and all train with them."""
        before = {name: (id(buffer), buffer._version) for name, buffer in buffers(self._model).items()}
        yield
        present = buffers(self._model)
        self._evaluated = [name for name, b in present.items() if before.get(name) != (id(b), b._version)]

    def begin_epoch(self) -> None:
        """Copy the buffers that the evaluation of rank 0 has changed to all ranks."""
        names = self._ranks.gather([self._evaluated])[0]
        if names:
            present = buffers(self._model)
            broadcast([present[name] for name in names])

    def begin_step(self) -> None:
        """Copy the changing buffers of rank 0 to all ranks; before the first step, take a copy of all."""
        if self._names is None:
            self._before = {name: buffer.clone() for name, buffer in buffers(self._model).items()}
        elif self._names:
            present = buffers(self._model)
            broadcast([present[name] for name in self._names])

    def end_step(self) -> None:
        """Collect, after the first step, the names of the buffers that it changed on any rank."""
        if self._before is None:
            return
        present = buffers(self._model)
        own = [name for name, before in self._before.items() if not torch.equal(before, present[name])]
        told = self._ranks.gather([own])
        self._names, self._before = sorted({name for names in told for name in names}), None
