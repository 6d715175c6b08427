"""An optimizer and a scheduler that an experiment has made itself, as a training steps them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch

from raygpu.training.hyperparameters import OptimizerSettings
from raygpu.training.torch.torch_private_api import is_left_by_fused_sgd
from raygpu.training.torch.value_texts import digest, tensor_text

MADE_OTHERWISE = (
    "optimizer() and scheduler() now give other numbers than before the checkpoint, whose numbers are used: {changes};"
    " set epochs, hyper-parameters, data, devices or code back, or begin a new training"
)
MOST_CHANGES = 2
"""Number of changes that are named: of an error, a line shows 300 characters."""
UNCOMPARED = ("params", "foreach", "fused", "capturable", "_last_lr")
"""Numbers of groups and schedulers that are others on another device, or that each step computes anew."""


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
        self._made = self._numbers()
        """Numbers of the optimizer and the scheduler before the first step."""
        self.changes: list[str] = []
        """Numbers that a loaded state has otherwise, each in words."""

    def _numbers(self) -> dict[str, Any]:
        """Return the numbers and texts of the groups of parameters, and of the scheduler's state."""
        groups = [_plain(group) for group in self._optimizer.param_groups]
        for group in groups:
            if "initial_lr" in group:  # of which a scheduler computes that of each step
                group.pop("lr", None)
        return {"groups": groups, "scheduler": _plain(getattr(self._scheduler, "state_dict", dict)())}

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
        """Return the number of steps, the states of the optimizer and the scheduler, and their numbers at the start."""
        scheduler = self._scheduler.state_dict() if self._scheduler is not None else None
        states = {"optimizer": self._optimizer.state_dict(), "scheduler": scheduler}
        return {"num_steps": self.num_steps, **states, "made": self._made}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copy a state of `state_dict` into this optimizer, with the numbers of one that was made with others: torch's
        optimizers and schedulers take over all of a state, and schedules of another length. `changes` has them."""
        changes = _changes(state.get("made", {}), self._made)  # an older version has none
        self.changes = list(islice(dict.fromkeys(changes), MOST_CHANGES))
        self.num_steps = state["num_steps"]
        self._optimizer.load_state_dict(state["optimizer"])
        _stop_fused_sgd(self._optimizer)
        if self._scheduler is not None:
            self._scheduler.load_state_dict(state["scheduler"])


def has_modes(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer has other parameters in training than in an evaluation, as schedule-free ones, which
    their users switch by its methods `train()` and `eval()`."""
    return all(callable(getattr(optimizer, name, None)) for name in ("train", "eval"))


def _plain(value: Any) -> Any:
    """Return the numbers and texts of a state, and of the lists and dicts in it, a digest of an array, and None of
    everything else."""
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):  # as a Counter of milestones
            return _plain([*value.items()])
        return {key: _plain(each) for key, each in value.items() if key not in UNCOMPARED}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        if math.prod(value.shape) != 1:
            text = tensor_text(value) if isinstance(value, torch.Tensor) else digest(value.tobytes())
            return f"{tuple(value.shape)} {text:.8}"
        value = value.item()
    return value if isinstance(value, bool | int | float | str) else None


def _changes(before: Any, now: Any, name: str = "") -> Iterator[str]:
    """Yield the numbers that differ, each in words. A name that one of the two lacks is that of another version."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in now:
            if key in before:
                yield from _changes(before[key], now[key], key)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for one, other in zip(before, now, strict=True):
            yield from _changes(one, other, name)
    elif before != now and repr(before) != repr(now):  # NaN is not equal to itself
        yield f"{name} {now!s:.40} in place of {before!s:.40}"


def changed_numbers(optimizer: Any) -> list[str]:
    """Return a line on numbers that the state which an optimizer has loaded has otherwise; none of raygpu's own."""
    changes = getattr(optimizer, "changes", ())
    return [MADE_OTHERWISE.format(changes=", ".join(changes))] if changes else []


def _stop_fused_sgd(optimizer: torch.optim.Optimizer) -> None:
    """Let SGD(fused=True) take its steps otherwise for groups with parameters that its fused operator would leave."""
    for group in optimizer.param_groups if isinstance(optimizer, torch.optim.SGD) else []:
        if group["fused"] and any(is_left_by_fused_sgd(parameter) for parameter in group["params"]):
            group["fused"] = False
