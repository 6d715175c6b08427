"""Several optimizers of one training that take turns in every batch, as those of a generator and a discriminator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch

from raygpu.training.hyperparameters import OptimizerSettings
from raygpu.training.torch.loss_scale import LossScale
from raygpu.training.torch.own_optimizer import OwnOptimizer
from raygpu.training.torch.reduction import TurnLosses, backward, clip_gradients

Turns = Iterator[tuple[str, torch.Tensor]]
"""Name of the optimizer and loss of each step in a batch, as `training_step` yields them."""


class TurnGradient:
    """Computes the gradient of each turn in a batch; a subclass sums those of several ranks."""

    def __init__(self, take_unfrozen: Callable[[], Sequence[Any]]) -> None:
        """take_unfrozen: takes in the parameters that the code has unfrozen before a turn, and returns them."""
        self._take_unfrozen = take_unfrozen

    def next_turn(self, turns: Turns) -> Any:
        """Return what `training_step` yields next; None at the end."""
        return next(turns, None)

    def compute(self, name: str, loss: Any) -> None:
        """Leave the gradient of the optimizer's loss in its parameters. loss: with the loss scale."""
        self._take_unfrozen()
        backward(loss)

    def stepping(self) -> AbstractContextManager[None]:
        """Return the context of the optimizer's step in a turn."""
        return nullcontext()


class SeveralOptimizers:
    """The optimizers that an experiment makes, by name, each of parameters of its own; see `OwnOptimizer`."""

    def __init__(
        self, by_name: Mapping[str, OwnOptimizer], everything: Sequence[torch.Tensor], num_batches: int
    ) -> None:
        """everything: the model's parameters, those that no optimizer has among them. num_batches: of the training, at
        whose end the schedulers stop."""
        self._by_name, self._everything, self._most_batches = dict(by_name), everything, num_batches
        self.num_batches = 0
        self.changes: list[str] = []
        """Numbers that a loaded state has otherwise, each in words."""
        self.own_lr = next(iter(by_name.values())).own_lr
        """Learning rate of the first optimizer in the last step; before it, in the first one."""

    @property
    def settings(self) -> OptimizerSettings:
        """Settings of the next step, of which `clip_norm` alone counts: it clips the gradient of each turn."""
        return next(iter(self._by_name.values())).settings

    @property
    def parameters(self) -> list[torch.Tensor]:
        """The parameters of all optimizers."""
        return [parameter for each in self._by_name.values() for parameter in each.parameters]

    @property
    def parameters_by_name(self) -> dict[str, list[Any]]:
        """The parameters of each optimizer."""
        return {name: each.parameters for name, each in self._by_name.items()}

    def plain_attributes(self) -> dict[str, Any]:
        """Return those of each optimizer and its scheduler, by name."""
        attributes = {name: each.plain_attributes() for name, each in self._by_name.items()}
        return {f"{key} {name}": value for name, of in attributes.items() for key, value in of.items()}

    @property
    def buffers(self) -> list[list[torch.Tensor]]:
        """The optimizers' state tensors of each parameter."""
        return [buffers for each in self._by_name.values() for buffers in each.buffers]

    @property
    def has_modes(self) -> bool:
        """Whether an evaluation has other parameters than the training: see `OwnOptimizer`."""
        return any(each.has_modes for each in self._by_name.values())

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Let the parameters be those that are evaluated: see `OwnOptimizer`."""
        with ExitStack() as stack:
            for each in self._by_name.values():
                stack.enter_context(each.evaluating())
            yield

    def use(self, settings: OptimizerSettings) -> None:
        """Go on with another `clip_norm`."""
        for each in self._by_name.values():
            each.use(settings)

    def take_unfrozen(self) -> list[Any]:
        """Take in the parameters that require a gradient by now, and did not when this was made; return them."""
        return [parameter for each in self._by_name.values() for parameter in each.take_unfrozen()]

    def step(self, lr: float) -> None:
        """Raise TypeError: a loss of all parameters together is no optimizer's."""
        raise TypeError("several optimizers step by the losses that training_step() yields")

    def take_turns(
        self,
        turns: Turns,
        autocast: Callable[[], AbstractContextManager[None]],
        loss_scale: LossScale,
        gradient: TurnGradient,
    ) -> TurnLosses:
        """Take the steps of a batch; return each optimizer's mean loss in it.

        Raises TypeError or ValueError for what is no turn, or is another optimizer's.
        """
        losses: dict[str, list[torch.Tensor]] = {}
        self.num_batches += 1
        for each in self._by_name.values():
            each.is_beyond_end = self.num_batches > self._most_batches
        while True:
            with autocast():
                turn = gradient.next_turn(turns)
            if turn is None:
                break
            name, loss = self._checked(turn)
            self._drop_gradients()
            gradient.compute(name, loss_scale.scaled(loss))
            with gradient.stepping():
                self._step(name, loss_scale)
            losses.setdefault(name, []).append(loss.detach())
        if not losses:
            raise ValueError("training_step() yielded no loss; an optimizer step follows each pair (name, loss)")
        self.own_lr = next(iter(self._by_name.values())).own_lr
        return {name: torch.stack(each).mean() for name, each in losses.items()}

    def _checked(self, turn: Any) -> tuple[str, torch.Tensor]:
        is_pair = isinstance(turn, tuple) and len(turn) == 2
        if not is_pair or not isinstance(turn[1], torch.Tensor):
            raise TypeError("training_step() yielded no pair (name, loss) of an optimizer's name and a scalar tensor")
        if turn[0] not in self._by_name:
            raise ValueError(f"training_step() yielded {turn[0]!r}; optimizer() has: {', '.join(self._by_name)}")
        return turn

    def _step(self, name: str, loss_scale: LossScale) -> None:
        """Take a step of one optimizer by its parameters' gradients, and drop all gradients."""
        optimizer = self._by_name[name]
        if all(parameter.grad is None for parameter in optimizer.parameters):
            raise ValueError(f"the loss that training_step() yielded for {name!r} depends on none of its parameters")
        loss_scale.unscale(optimizer.parameters)
        if optimizer.settings.clip_norm is not None:
            clip_gradients(optimizer.parameters, optimizer.settings.clip_norm)
        loss_scale.step(partial(optimizer.step, 0.0))
        self._drop_gradients()

    def _drop_gradients(self) -> None:
        """Drop what a step of other parameters, or the code of the experiment itself, has left."""
        for parameter in self._everything:
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Return the number of batches, and the state of each optimizer and its scheduler, by name."""
        return {
            "num_batches": self.num_batches,
            "several": {name: each.state_dict() for name, each in self._by_name.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copy a state of `state_dict` into the optimizers."""
        self.num_batches, self.changes = state["num_batches"], []
        for name, each in self._by_name.items():
            each.load_state_dict(state["several"][name])
            self.changes += getattr(each, "changes", [])
