"""The optimizer of a sharded model: each rank updates its part of each parameter.

raygpu's own works on the parts as plain tensors, since its rules treat each number by itself. An experiment's own gets
the model's parameters as torch's DTensors. The states are saved whole, as a training on one device saves them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from raygpu.training.distributed.sharded.lockstep import WITHOUT
from raygpu.training.distributed.sharded.shards import Shards
from raygpu.training.hyperparameters import OptimizerSettings
from raygpu.training.torch.host_copy import host_copy
from raygpu.training.torch.optimizers import BuiltinOptimizer
from raygpu.training.torch.own_optimizer import OwnOptimizer

EXACT = ("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta", "ASGD")
"""Optimizers of torch.optim that treat each number of a parameter by itself; Rprop fails on DTensors."""


class ShardedOptimizer(BuiltinOptimizer):
    """raygpu's optimizer on this rank's part of each parameter; ranks save and load together."""

    def __init__(self, settings: OptimizerSettings, shards: Shards) -> None:
        super().__init__(settings, shards.locals)
        self._shards = shards
        self._places = [place for place, local in enumerate(shards.locals) if local.requires_grad]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of whole parameters on rank 0, as `BuiltinOptimizer` does; without tensors on the others."""
        shards, buffers = self._shards, []
        for place, local_buffers in zip(self._places, self.buffers, strict=True):
            parameter = shards.parameters[place]
            whole_buffers = [shards.gathered(shards.like(parameter, buffer)) for buffer in local_buffers]
            buffers.append([each for each in whole_buffers if each is not None])
        return {**super().state_dict(), "buffers": buffers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take this rank's parts of a state of whole parameters."""
        shards, local_buffers = self._shards, []
        for place, saved in zip(self._places, state["buffers"], strict=True):
            is_sharded = isinstance(shards.parameters[place], DTensor)
            local_buffers.append([shards.part_of(each) if is_sharded else each for each in saved])
        super().load_state_dict({**state, "buffers": local_buffers})


class ShardedOwnOptimizer(OwnOptimizer):
    """An experiment's optimizer on sharded parameters; all ranks save and load together."""

    @classmethod
    def of(cls, made: OwnOptimizer, shards: Shards) -> ShardedOwnOptimizer:
        """Take over an optimizer of sharded parameters. Raises ValueError for one that may be wrong on them."""
        kind = type(made._optimizer)
        if kind.__name__ not in EXACT or kind is not getattr(torch.optim, kind.__name__):
            raise ValueError(
                f"optimizer() returned {kind.__name__}; a sharded model takes {', '.join(EXACT)} of torch.optim:"
                f" {WITHOUT}"
            )
        optimizer = cls.__new__(cls)
        vars(optimizer).update(vars(made))
        optimizer._shards = shards
        optimizer._given = optimizer.parameters
        optimizer.parameters = [local for local in shards.locals if local.requires_grad]
        return optimizer

    _shards: Shards
    _given: list[Any]
    """The model's parameters that train; `parameters` are this rank's parts of them."""

    @property
    def buffers(self) -> list[list[torch.Tensor]]:
        """This rank's part of the optimizer's state of each parameter."""
        return [
            [value.to_local() if isinstance(value, DTensor) else value
             for value in self._optimizer.state.get(parameter, {}).values() if isinstance(value, torch.Tensor)]
            for parameter in self._given
        ]  # fmt: skip

    def step(self, lr: float) -> None:
        """Take a step of the optimizer and of the scheduler, and drop the gradients. lr: not used."""
        for parameter, local in zip(self._given, self.parameters, strict=True):
            if local.grad is not None:
                parameter.grad = self._shards.like(parameter, local.grad)
        super().step(lr)
        for parameter in self._given:
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Return the state of whole parameters on rank 0, as `OwnOptimizer` has it; without tensors on the others."""
        state = super().state_dict()
        entries: dict[str, Any] = state["optimizer"]
        whole_state = {
            place: {name: self._shards.gathered(value) if isinstance(value, torch.Tensor) else value
                    for name, value in values.items()}
            for place, values in entries["state"].items()
        }  # fmt: skip
        rest = host_copy({**state, "optimizer": {name: value for name, value in entries.items() if name != "state"}})
        rest["optimizer"]["state"] = whole_state
        return rest

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take this rank's parts of a state of whole parameters."""
        saved = state["optimizer"]
        order = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        cut = {
            place: {name: self._cut(order[place], value) for name, value in values.items()}
            for place, values in saved["state"].items()
        }
        super().load_state_dict(state | {"optimizer": saved | {"state": cut}})

    def _cut(self, parameter: torch.Tensor, value: Any) -> Any:
        """Return this rank's part of a value of an optimizer's state, not in the memory of the checkpoint."""
        if not isinstance(value, torch.Tensor):
            return value
        return self._shards.cut(parameter, value) if value.shape == parameter.shape else value.clone()
