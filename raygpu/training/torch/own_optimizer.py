"""The optimizer and scheduler that an experiment makes itself, in the place of the one that hyper-parameters name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import Parameter, signature
from typing import Any, cast

import torch
from torch import nn

from raygpu.experiment import Experiment, Hyperparameters
from raygpu.training.hyperparameters import OptimizerSettings
from raygpu.training.torch.experiment import TorchExperiment, overrides
from raygpu.training.torch.optimizers import BuiltinOptimizer


class OwnOptimizer:
    """An experiment's optimizer, and its scheduler if it has one, with the methods of `BuiltinOptimizer`."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        scheduler: Any,
        settings: OptimizerSettings,
        parameters: Iterable[Any],
        most_steps: int,
    ) -> None:
        """settings: only `clip_norm` counts. parameters: of the model, those that the optimizer leaves out among them.
        most_steps: steps after which the scheduler is left alone; a benchmark takes steps beyond its end."""
        self.settings = settings
        everything = list(parameters)
        self.parameters = [parameter for parameter in everything if parameter.requires_grad]
        self._frozen = [parameter for parameter in everything if not parameter.requires_grad]
        self.num_steps = 0
        self._optimizer, self._scheduler, self._most_steps = optimizer, scheduler, most_steps
        self.own_lr = float(optimizer.param_groups[0]["lr"])
        """Learning rate of the first group of parameters in the last step; before it, in the first one."""

    @property
    def buffers(self) -> list[list[torch.Tensor]]:
        """The optimizer's state tensors of each parameter."""
        return [
            [value for value in self._optimizer.state.get(parameter, {}).values() if isinstance(value, torch.Tensor)]
            for parameter in self.parameters
        ]

    def use(self, settings: OptimizerSettings) -> None:
        """Go on with another `clip_norm`; the other numbers are the experiment's."""
        self.settings = settings

    def take_unfrozen(self) -> list[Any]:
        """Take in the parameters that require a gradient by now, and did not when this was made; return them."""
        unfrozen = [parameter for parameter in self._frozen if parameter.requires_grad]
        if unfrozen:
            self.parameters += unfrozen
            self._frozen = [parameter for parameter in self._frozen if not parameter.requires_grad]
        return unfrozen

    def step(self, lr: float) -> None:
        """Take a step of the optimizer and of the scheduler, and drop the gradients. lr: not used."""
        self.num_steps += 1
        self.own_lr = float(self._optimizer.param_groups[0]["lr"])
        self._optimizer.step()
        if self._scheduler is not None and self.num_steps <= self._most_steps:
            self._scheduler.step()
        for parameter in self.parameters:
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps, and the states of the optimizer and the scheduler."""
        scheduler = self._scheduler.state_dict() if self._scheduler is not None else None
        return {"num_steps": self.num_steps, "optimizer": self._optimizer.state_dict(), "scheduler": scheduler}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copy a state of `state_dict` into this optimizer."""
        self.num_steps = state["num_steps"]
        self._optimizer.load_state_dict(state["optimizer"])
        if self._scheduler is not None:
            self._scheduler.load_state_dict(state["scheduler"])


def _needs_argument(function: Callable[..., Any]) -> bool:
    """Return whether a function cannot be called without an argument."""
    named = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return any(
        each.default is Parameter.empty and each.kind in named for each in signature(function).parameters.values()
    )


def make_optimizer(
    experiment: Experiment, model: nn.Module, hp: Hyperparameters, settings: OptimizerSettings, num_steps: int
) -> BuiltinOptimizer | OwnOptimizer:
    """Return the experiment's own optimizer, or the one that the hyper-parameters name.

    num_steps: optimizer steps of the whole training. Raises ValueError for an optimizer of other parameters than the
    model's, and for a scheduler without an optimizer; TypeError for what is no optimizer, and for one
    or a scheduler whose step needs an argument.
    """
    own = cast(TorchExperiment, experiment)
    made = own.optimizer(model, hp)
    if made is None and overrides(experiment, "scheduler"):
        raise ValueError("scheduler() steps an optimizer of the experiment's own, and optimizer() returned none")
    if made is None:
        return BuiltinOptimizer(settings.in_epoch(1), model.parameters())
    if not isinstance(made, torch.optim.Optimizer):
        raise TypeError(f"optimizer(model, hp) returned {type(made).__name__}; a torch.optim.Optimizer is wanted")
    known = {id(parameter) for parameter in model.parameters()}
    if any(id(parameter) not in known for group in made.param_groups for parameter in group["params"]):
        raise ValueError("optimizer(model, hp) returned an optimizer with parameters that are not the model's")
    if _needs_argument(made.step):
        raise TypeError(f"optimizer(model, hp) returned {type(made).__name__}, whose step() needs a closure")
    scheduler = own.scheduler(made, hp, num_steps)
    if scheduler is not None and _needs_argument(scheduler.step):
        raise TypeError(
            f"scheduler() returned {type(scheduler).__name__}, whose step() needs a metric; it is stepped after each"
            " optimizer step, without one"
        )
    return OwnOptimizer(made, scheduler, settings.in_epoch(1), model.parameters(), num_steps)
