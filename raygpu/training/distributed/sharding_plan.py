"""The plan of a training with its model sharded over the devices, or with a whole one on each."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

from raygpu.config import TrainConfig
from raygpu.config.source import Source
from raygpu.errors import BadInput
from raygpu.experiment import Splits
from raygpu.planning.sharding import ParameterSize, TrainingState, choose_sharding
from raygpu.search.hyperparameters import Hyperparameters
from raygpu.training.distributed.batch_split import BatchPlan
from raygpu.training.distributed.loss_check import MOST
from raygpu.training.hyperparameters import OptimizerSettings
from raygpu.training.torch.experiment import overrides

OWN_BUFFERS = 2
"""Assumed number of buffers of an experiment's own optimizer for each parameter: those of Adam."""


def require_sharding(config: TrainConfig, framework: str) -> None:
    """Raise BadInput if a training is to be sharded that cannot be, by what is known before its model is made."""
    if config.sharding == "full" and (hindrance := _configured(config, framework)) is not None:
        raise BadInput(f"sharding: read full; {hindrance}")


def with_sharding(
    config: TrainConfig,
    plan: BatchPlan,
    devices: int,
    source: Source,
    code: Any,
    splits: Splits,
    *,
    device_gib: float | None,
    shared: bool,
) -> BatchPlan:
    """Return the plan with the choice whether to shard the model, and with a line on it.

    devices: number of ranks. device_gib: memory of the smallest device; None without a GPU. shared: whether workers
    share a GPU. Raises BadInput if the configuration asks for what is not possible.
    """
    require_sharding(config, source.kind)
    if source.kind != "torch" or config.sharding == "none" or (config.sharding == "auto" and device_gib is None):
        return plan
    try:
        with contextlib.chdir(source.folder):
            state, hindrance = _state(code, config), _configured(config, source.kind)
            if shared and device_gib is not None:
                hindrance = hindrance or "workers that share a GPU would have all parts on it"
            if devices > 1 and (config.sharding == "full" or (device_gib is not None and not state.fits(device_gib))):
                hindrance = hindrance or _hindrance(code, config, splits)
            choice = choose_sharding(config.sharding, state, devices, device_gib, hindrance=hindrance)
    except ValueError as error:
        raise BadInput(f"sharding: read {config.sharding}; {error}") from error
    lines = (*plan.lines, *([choice.line] if choice.line else []))
    return replace(plan, parallel=replace(plan.parallel, sharded=choice.sharded), lines=lines)


def _configured(config: TrainConfig, framework: str) -> str | None:
    """Return why a training cannot be sharded, by its configuration; None if it can be."""
    if framework != "torch":
        return f"sharding is for torch experiments, not for {'Keras' if framework == 'keras' else 'a function'}"
    if config.compile:
        return "a sharded model is not compiled: leave compile out"
    if config.hyperparameters.get("ema_decay") is not None:
        return "a sharded model has no average of its parameters: leave ema_decay out"
    if config.ratios == "auto":
        return (
            "a device's own speed cannot be measured while it waits for parts of the others: --ratios equal, or numbers"
        )
    return None


def _state(code: Any, config: TrainConfig) -> TrainingState:
    from raygpu.training.distributed.sharded.blocks import largest_bytes
    from raygpu.training.torch.models import initial_model

    model = initial_model(code, Hyperparameters.of(config.hyperparameters), seed=0)
    has_own_optimizer = overrides(code, "optimizer")
    num_buffers = OWN_BUFFERS if has_own_optimizer else OptimizerSettings.of(config.hyperparameters).num_buffers
    sizes = (ParameterSize(p.numel(), p.element_size(), p.requires_grad) for p in model.parameters())
    return TrainingState.of(sizes, num_buffers=num_buffers, largest=largest_bytes(model))


def _hindrance(code: Any, config: TrainConfig, splits: Splits) -> str | None:
    """Return why this model cannot be sharded; None if nothing is in the way."""
    from raygpu.training.distributed.sharded.shards import require_shardable
    from raygpu.training.distributed.torch_loss_check import TorchLossEvaluator
    from raygpu.training.torch.models import initial_model

    try:
        require_shardable(initial_model(code, Hyperparameters.of(config.hyperparameters), seed=0))
    except ValueError as error:
        return str(error)
    few = splits.first(MOST)
    look = TorchLossEvaluator(code, config.hyperparameters, few.train_inputs, few.train_targets, with_metrics=False)
    if written := look.written_parameters():
        return f"a forward pass writes to parameters in place ({', '.join(written[:3])}), which a sharded model loses"
    return None
