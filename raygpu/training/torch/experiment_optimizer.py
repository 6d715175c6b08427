"""The optimizer of a training: the experiment's own, several of its own, or the one that hyper-parameters name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from typing import Any, cast

import torch
from torch import nn

from raygpu.experiment import Experiment
from raygpu.search.hyperparameters import Hyperparameters
from raygpu.training.hyperparameters import OptimizerSettings
from raygpu.training.torch.experiment import TorchExperiment, overrides
from raygpu.training.torch.optimizers import BuiltinOptimizer
from raygpu.training.torch.own_optimizer import OwnOptimizer, has_modes
from raygpu.training.torch.several_optimizers import SeveralOptimizers

AnyOptimizer = BuiltinOptimizer | OwnOptimizer | SeveralOptimizers


def make_optimizer(
    experiment: Experiment, model: nn.Module, hp: Hyperparameters, settings: OptimizerSettings, num_steps: int
) -> AnyOptimizer:
    """Return the experiment's own optimizer, or several by name, or the one that the hyper-parameters name.

    num_steps: optimizer steps of the whole training. Raises ValueError for an optimizer of other parameters than the
    model's, and for a scheduler without an optimizer; TypeError for what is no optimizer, and for one
    or a scheduler whose step needs an argument.
    """
    code = cast(TorchExperiment, experiment)
    choice = code.optimizer(model, hp)
    if choice is None and overrides(experiment, "scheduler"):
        raise ValueError("scheduler() steps an optimizer of the experiment's own, and optimizer() returned none")
    if choice is None:
        return BuiltinOptimizer(settings.in_epoch(1), model.parameters())
    every = [*model.parameters()]
    for each in choice.values() if isinstance(choice, Mapping) else [choice]:
        if settings.ema_decay is not None and has_modes(each):
            raise ValueError(
                f"ema_decay: {type(each).__name__} has an average of its own, by its eval(); leave ema_decay out"
            )
    if not isinstance(choice, Mapping):
        _check(choice, every)
        return OwnOptimizer(choice, _scheduler(code, choice, hp, num_steps), settings.in_epoch(1), every, num_steps)
    if not choice:
        raise ValueError("optimizer(model, hp) returned an empty dict; one optimizer is wanted at least")
    if settings.micro_batch_size is not None:
        raise ValueError("micro_batch_size: optimizers that take turns take whole batches; leave it out")
    owner: dict[int, str] = {}
    for name, each in choice.items():
        _check(each, every)
        for parameter in _parameters(each):
            if owner.setdefault(id(parameter), name) != name:
                raise ValueError(
                    f"optimizer(model, hp): {owner[id(parameter)]} and {name} have a parameter of shape"
                    f" {tuple(parameter.shape)} in common; each needs parameters of its own"
                )
    first = settings.in_epoch(1)
    return SeveralOptimizers(
        {
            name: OwnOptimizer(each, _scheduler(code, each, hp, num_steps), first, _parameters(each), math.inf)
            for name, each in choice.items()
        },
        every,
        num_steps,
    )


def _parameters(optimizer: torch.optim.Optimizer) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _check(made: Any, every: Sequence[Any]) -> None:
    """Raise TypeError or ValueError for what cannot be a training's optimizer. every: parameters of the model."""
    if not isinstance(made, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer(model, hp) returned {type(made).__name__}; a torch.optim.Optimizer is wanted, or a dict of them"
        )
    parameter_ids = {id(parameter) for parameter in every}
    if any(id(parameter) not in parameter_ids for parameter in _parameters(made)):
        raise ValueError("optimizer(model, hp) returned an optimizer with parameters that are not the model's")
    if _needs_argument(made.step):
        raise TypeError(f"optimizer(model, hp) returned {type(made).__name__}, whose step() needs a closure")


def _scheduler(own: TorchExperiment, optimizer: torch.optim.Optimizer, hp: Hyperparameters, num_steps: int) -> Any:
    """Return the experiment's scheduler of an optimizer. Raises TypeError for what is none, and for one whose step
    needs an argument."""
    scheduler = own.scheduler(optimizer, hp, num_steps)
    if scheduler is not None and not callable(getattr(scheduler, "step", None)):
        raise TypeError(
            f"scheduler() returned {type(scheduler).__name__}; one scheduler is wanted, with the methods of those in"
            " torch.optim.lr_scheduler: its ChainedScheduler and SequentialLR join several"
        )
    if scheduler is not None and _needs_argument(scheduler.step):
        raise TypeError(
            f"scheduler() returned {type(scheduler).__name__}, whose step() needs a metric; it is stepped after each"
            " optimizer step, without one"
        )
    return scheduler


def _needs_argument(function: Callable[..., Any]) -> bool:
    """Return whether a function cannot be called without an argument."""
    named = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return any(
        each.default is Parameter.empty and each.kind in named for each in signature(function).parameters.values()
    )
