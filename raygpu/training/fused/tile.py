"""A tile: the members of an array that step as one program, as stacked tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from raygpu.search.trials import Trial
from raygpu.training.fused.member_generators import MemberStreams
from raygpu.training.hyperparameters import OptimizerSettings
from raygpu.training.torch.data import Tensors, in_precision

Stacked = dict[str, torch.Tensor]
"""Tensors by name; the first axis of each counts the members."""


class RecordedStep(Protocol):
    """A tile's step that is replayed: see `GraphedStep`."""

    def takes(self, inputs: Tensors, targets: Tensors) -> bool:
        """Return whether a batch has the recorded shapes."""

    def __call__(
        self, inputs: Tensors, targets: Tensors, numbers: torch.Tensor, drawn: list[torch.Tensor]
    ) -> torch.Tensor:
        """Replay the step; return the losses, packed, (width, ...)."""


class Tile:
    """Members of an array that step together: the stacked tensors that one step changes."""

    def __init__(
        self,
        trials: list[Trial],
        settings: list[OptimizerSettings],
        parameters: Stacked,
        fixed: Stacked,
        buffers: Stacked,
        optimizer_state: list[Stacked],
    ) -> None:
        self.trials = trials
        self.optimizer_settings = settings
        self.parameters = parameters
        """Trained parameters."""
        self.fixed = fixed
        """Parameters that are frozen, or on which the loss does not depend."""
        self.buffers = buffers
        self.optimizer_state = optimizer_state
        """The optimizer's state, with an average of parameters and buffers if a member has one, and in fp16 with the
        loss scales."""
        self.graphed: RecordedStep | None = None
        """The step as a recorded CUDA graph, once there is one."""
        self.streams: MemberStreams | None = None
        """Random numbers of the rows; None if the model draws none."""

    @property
    def width(self) -> int:
        """Number of rows of the stacks: the members, and repetitions of the first one that fill a compiled width."""
        return len(next(iter(self.parameters.values())))

    def rows_of(self, values: Sequence[Any]) -> list[Any]:
        """Return a value for each row, from one for each member."""
        return [*values, *[values[0]] * (self.width - len(values))]

    def stacks(self) -> Iterator[Stacked]:
        """Yield all tensors of the members, by name, in a fixed order."""
        yield from (self.parameters, self.fixed, self.buffers, *self.optimizer_state)

    def cast(self, dtype: torch.dtype) -> Tile:
        """Return a copy whose floating-point tensors have another dtype."""
        parameters, fixed, buffers, *optimizer_state = (
            {name: in_precision(tensor, dtype).clone() for name, tensor in stack.items()} for stack in self.stacks()
        )
        return Tile(self.trials, self.optimizer_settings, parameters, fixed, buffers, optimizer_state)


def gathered_tile(members: Sequence[tuple[Tile, int]], width: int) -> Tile:
    """Make a tile of chosen rows of others, filled up to `width` with the first row."""
    filled = [*members, *[members[0]] * (width - len(members))]
    stacks = [[*tile.stacks()] for tile, _ in filled]
    joined = [
        {name: torch.stack([own[k][name][i] for own, (_, i) in zip(stacks, filled, strict=True)]) for name in first}
        for k, first in enumerate(stacks[0])
    ]
    trials, settings = [t.trials[i] for t, i in members], [t.optimizer_settings[i] for t, i in members]
    parameters, fixed, buffers, *optimizer_state = joined
    return Tile(trials, settings, parameters, fixed, buffers, optimizer_state)


def joined(stacks: Sequence[Mapping[str, torch.Tensor]]) -> Stacked:
    """Concatenate the rows of several stacks with the same names."""
    return {name: torch.cat([stack[name] for stack in stacks]) for name in stacks[0]}


def first_rows(stack: Stacked, count: int) -> Stacked:
    """Return the first `count` rows: a copy, unless there are no others."""
    return {name: tensor if len(tensor) == count else tensor[:count].clone() for name, tensor in stack.items()}
