"""BatchNorm of a torch model whose batches several ranks share."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from raygpu.training.torch.models import has_batch_norm

NOT_JOINED = "BatchNorm: torch synchronises it on GPUs only; here each rank normalises its share by itself"


def join_batch_norm(model: nn.Module, device: torch.device) -> tuple[nn.Module, list[str]]:
    """Return the model with each BatchNorm over all ranks' samples, where torch can do that; and lines for a person.

    Its statistics are rank 0's, as that one evaluates and saves: waiting for them would spoil the speeds.
    """
    if not has_batch_norm(model):
        return model, []
    if device.type != "cuda":
        return model, [NOT_JOINED]
    model = _synchronized(model)
    apart = [
        f"{name}, {type(module).__name__}" for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.training and not isinstance(module, nn.SyncBatchNorm)
    ]  # fmt: skip
    cause = f"BatchNorm: torch synchronises none of a class of its own ({'; '.join(apart)})"
    return model, [f"{cause}; there each rank normalises its share by itself"] if apart else []


def has_joint_norm(model: nn.Module) -> bool:
    """Return whether a layer exchanges statistics with the other ranks, in the forward and in the backward pass."""
    return any(isinstance(module, nn.SyncBatchNorm) for module in model.modules())


def _synchronized(model: nn.Module) -> nn.Module:
    """Convert BatchNorm to one over all ranks' samples; subclasses of torch's layers stay as they are."""
    if type(model) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    for name, child in model.named_children():
        setattr(model, name, _synchronized(child))
    return model
