"""An optimizer and a scheduler that an experiment has made itself, as a training steps them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from raygpu.training.hyperparameters import OptimizerSettings
from raygpu.training.torch.torch_private_api import is_left_by_fused_sgd


class OwnOptimizer:
    """An experiment's optimizer, and its scheduler if it has one, with the methods of `BuiltinOptimizer`."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        scheduler: Any,
        settings: OptimizerSettings,
        parameters: Iterable[Any],
        most_steps: float,
    ) -> None:
        """settings: only `clip_norm` counts. parameters: of the model, those that the optimizer leaves out among them.
        most_steps: steps after which the scheduler is left alone; a benchmark takes steps beyond its end."""
        _stop_fused_sgd(optimizer)
        self.has_modes = has_modes(optimizer)
        if self.has_modes:
            optimizer.train()
        self.settings = settings
        everything = list(parameters)
        self.parameters = [parameter for parameter in everything if parameter.requires_grad]
        self._frozen = [parameter for parameter in everything if not parameter.requires_grad]
        self.num_steps = 0
        self.is_beyond_end = False
        """Whether the training's last batch has been: see `most_steps`. Set by `SeveralOptimizers`, which counts."""
        self._optimizer, self._scheduler, self._most_steps = optimizer, scheduler, most_steps
        self.own_lr = self._lr()
        """Learning rate of the first group of parameters in the last step; before it, in the first one. NaN without
        any."""

    def _lr(self) -> float:
        return float(self._optimizer.param_groups[0].get("lr", math.nan))

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
        self.own_lr = self._lr()
        self._optimizer.step()
        if self._scheduler is not None and self.num_steps <= self._most_steps and not self.is_beyond_end:
            self._scheduler.step()
        for parameter in self.parameters:
            parameter.grad = None

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Let the parameters be those that the optimizer's `eval()` makes of them; afterwards they are to the bit what
        they were, as on ranks that do not evaluate. Without that method they stay."""
        if not self.has_modes:
            yield
            return
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        before = [parameter.detach().clone() for parameter in parameters]
        self._optimizer.eval()
        try:
            yield
        finally:
            self._optimizer.train()
            with torch.no_grad():
                for parameter, values in zip(parameters, before, strict=True):
                    parameter.copy_(values)

    def plain_attributes(self) -> dict[str, Any]:
        """Return the numbers and texts among the attributes of the optimizer and the scheduler, which a `state_dict`
        may leave out, by name."""
        owners = {"optimizer": self._optimizer, "scheduler": self._scheduler}
        return {
            f"{name} of the {kind}": value
            for kind, owner in owners.items()
            for name, value in getattr(owner, "__dict__", {}).items()
            if isinstance(value, bool | int | float | str)
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps, and the states of the optimizer and the scheduler."""
        scheduler = self._scheduler.state_dict() if self._scheduler is not None else None
        return {"num_steps": self.num_steps, "optimizer": self._optimizer.state_dict(), "scheduler": scheduler}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copy a state of `state_dict` into this optimizer."""
        self.num_steps = state["num_steps"]
        self._optimizer.load_state_dict(state["optimizer"])
        _stop_fused_sgd(self._optimizer)
        if self._scheduler is not None:
            self._scheduler.load_state_dict(state["scheduler"])


def has_modes(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer has other parameters in training than in an evaluation, as schedule-free ones, which
    their users switch by its methods `train()` and `eval()`."""
    return all(callable(getattr(optimizer, name, None)) for name in ("train", "eval"))


def _stop_fused_sgd(optimizer: torch.optim.Optimizer) -> None:
    """Let SGD(fused=True) take its steps otherwise for groups with parameters that its fused operator would leave."""
    for group in optimizer.param_groups if isinstance(optimizer, torch.optim.SGD) else []:
        if group["fused"] and any(is_left_by_fused_sgd(parameter) for parameter in group["params"]):
            group["fused"] = False
