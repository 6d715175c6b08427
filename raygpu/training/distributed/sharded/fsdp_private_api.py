"""Parts of FSDP2 beside its public functions.

`tests/training/distributed/sharded/test_fsdp_private_api.py` tells when it changes.
"""

from __future__ import annotations

from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather as DefaultAllGather
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter as DefaultReduceScatter
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam, ShardedState


def make_root(model: nn.Module) -> None:
    """Make a sharded model the root of its blocks, which else is the first one that is called."""
    fully_shard.state(model)._lazy_init()


def late_gradient(model: nn.Module) -> str | None:
    """Return the name of a block with a gradient that came after the block's were summed; None without one."""
    for name, module in model.named_modules():
        if isinstance(module, FSDPModule):
            for parameter in _parameters(module):
                unsharded = getattr(parameter, "_unsharded_param", None)
                if unsharded is not None and unsharded.grad is not None:
                    return name or "the model"
    return None


def undone_freezing(module: nn.Module) -> bool:
    """Return whether gathered parameters of a block, or of a module's blocks, have been frozen or unfrozen, which the
    next gathering undoes."""
    return any(
        parameter.sharded_state is ShardedState.UNSHARDED
        and parameter._unsharded_param.requires_grad != parameter.sharded_param.requires_grad
        for each in module.modules()
        if isinstance(each, FSDPModule)
        for parameter in _parameters(each)
    )


def _parameters(module: FSDPModule) -> list[FSDPParam]:
    state = fully_shard.state(module)
    groups = getattr(state, "_fsdp_param_groups", None)  # one, and none with "s", before torch 2.12
    if groups is None:
        groups = [group] if (group := state._fsdp_param_group) is not None else []
    return [parameter for group in groups for parameter in group.fsdp_params]
