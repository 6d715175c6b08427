"""Members of an array that take over another member's parameters, in place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from raygpu.training.fused.audit import AuditedArray
from raygpu.training.fused.loss_scales import write_scale
from raygpu.training.fused.program import Program
from raygpu.training.fused.tile import Tile
from raygpu.training.torch.parameter_average import unaveraged


@torch.no_grad()
def copy_members(array: AuditedArray, donors: Mapping[str, str]) -> None:
    """Copy to members what a checkpoint of others would hold. donors: trial ids by trial id; no donor is a taker.

    A donor without momentum has no such state: that of its taker begins at zero.
    """
    rows: dict[tuple[int, int], tuple[Tile, Tile, list[tuple[int, int]]]] = {}
    idle: dict[int, tuple[Tile, dict[int, list[int]]]] = {}
    for taker, donor in donors.items():
        (taker_tile, i), (other, j) = array.place(taker), array.place(donor)
        rows.setdefault((id(taker_tile), id(other)), (taker_tile, other, []))[2].append((i, j))
        num_donor_buffers = other.optimizer_settings[j].in_epoch(max(1, array.epoch)).num_buffers
        for number in range(num_donor_buffers, array.program.optimizer.num_buffers):
            idle.setdefault(id(taker_tile), (taker_tile, defaultdict(list)))[1][number].append(i)
    for taker_tile, other, pairs in rows.values():
        to, of = (torch.tensor(places, device=array.device) for places in zip(*pairs, strict=True))
        for target, source in zip(_kept(array.program, taker_tile), _kept(array.program, other), strict=True):
            target.index_copy_(0, to, source.index_select(0, of))
    for taker_tile, by_number in idle.values():
        for number, places in by_number.items():
            for tensor in array.program.optimizer.moments(taker_tile.optimizer_state)[number].values():
                tensor.index_fill_(0, torch.tensor(places, device=array.device), 0)


def _kept(program: Program, tile: Tile) -> Iterator[torch.Tensor]:
    """Yield a tile's tensors that a checkpoint holds: not the buffers that a state dict leaves out, nor averages of
    these."""
    names = {program.owners[name] for name in program.state_names}
    average = program.optimizer.average(tile.optimizer_state)
    for stack in (tile.parameters, tile.fixed, tile.buffers, average):
        yield from (tensor for name, tensor in stack.items() if name in names)
    for stack in tile.optimizer_state:
        if stack is not average:
            yield from stack.values()


@torch.no_grad()
def write_member(array: AuditedArray, trial_id: str, state: Mapping[str, Any]) -> None:
    """Write a member's checkpoint, as its training alone saves it, into its row. Raises ValueError for one of another
    epoch."""
    if state["epoch"] != array.epoch:
        raise ValueError(f"a checkpoint of epoch {state['epoch']} is no state of an array at epoch {array.epoch}")
    tile, i = array.place(trial_id)
    program = array.program
    trained, average = unaveraged(state), program.optimizer.average(tile.optimizer_state)
    tensors = tile.parameters | tile.fixed | tile.buffers
    for name in program.state_names:
        owner = program.owners[name]
        tensors[owner][i].copy_(trained[name])
        if owner in average:
            average[owner][i].copy_(state["model"][name])
    if scales := program.optimizer.loss_scales(tile.optimizer_state):
        skipped = array.epoch * array.steps_per_epoch - state["optimizer"]["num_steps"]
        write_scale(scales, i, state["loss_scale"], skipped)
    for name, buffers in zip(program.optimized, state["optimizer"]["buffers"], strict=True):
        for number, stack in enumerate(program.optimizer.moments(tile.optimizer_state)):
            if name in stack:
                stack[name][i].copy_(buffers[number]) if number < len(buffers) else stack[name][i].zero_()
