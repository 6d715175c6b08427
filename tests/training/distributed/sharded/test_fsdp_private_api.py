"""What raygpu takes of FSDP2 beside its public functions is in this release what raygpu needs."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from raygpu.training.distributed.sharded.fsdp_private_api import (
    DefaultAllGather,
    DefaultReduceScatter,
    late_gradient,
    make_root,
    undone_freezing,
)
from tests.ranks import on_ranks


def test_the_messages_are_called_with_the_same_arguments() -> None:
    gather = ["self", "output_tensor", "input_tensor", "group", "async_op"]
    scatter = ["self", "output_tensor", "input_tensor", "group", "op", "async_op"]
    assert list(inspect.signature(DefaultAllGather.__call__).parameters) == gather
    assert list(inspect.signature(DefaultReduceScatter.__call__).parameters) == scatter


def hooks(ranks: Any) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    fully_shard(model[0], mesh=DeviceMesh.from_group(torch.distributed.group.WORLD, "cpu"))
    fully_shard(model, mesh=DeviceMesh.from_group(torch.distributed.group.WORLD, "cpu"))
    make_root(model)
    arrived: list[str] = []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: arrived.append(name))
    model[0](torch.ones(4, 3)).sum().backward()  # would make it a root of its own
    model(torch.ones(4, 3)).sum().backward()
    none = late_gradient(model)
    model[0].unshard()
    model[0].weight.grad = torch.ones(3, 3)  # as from outside its forward pass
    return arrived, none, late_gradient(model)


def test_hooks_tell_of_each_summed_gradient_and_late_ones_are_seen() -> None:
    for arrived, none, late in on_ranks(2, hooks):
        assert sorted(arrived) == sorted(2 * ["0.weight", "0.bias"] + ["1.weight", "1.bias"])
        assert none is None
        assert late == "0"


def freezing(ranks: Any) -> list[bool]:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    for module in (model[0], model):
        fully_shard(module, mesh=DeviceMesh.from_group(torch.distributed.group.WORLD, "cpu"))
    make_root(model)
    found = [undone_freezing(model)]
    model[0].requires_grad_(False)
    model(torch.ones(4, 3))
    found.append(undone_freezing(model))  # the block was frozen before it was gathered
    model[1].requires_grad_(False)  # the root stays gathered
    found.append(undone_freezing(model))
    model.reshard()
    found.append(model[1].weight.requires_grad)
    return found


def test_what_is_frozen_while_it_is_gathered_is_undone_and_seen() -> None:
    for found in on_ranks(2, freezing):
        assert found == [False, False, True, True]
