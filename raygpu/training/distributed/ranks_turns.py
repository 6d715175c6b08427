"""The gradients of several optimizers that take turns in a batch whose samples several ranks share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from raygpu.training.distributed.rank_generators import drawn_alike
from raygpu.training.distributed.ranks import Ranks
from raygpu.training.distributed.ranks_gradient import RanksGradient
from raygpu.training.distributed.replicas import Replicas
from raygpu.training.distributed.stopwatch import Stopwatch
from raygpu.training.torch.several_optimizers import TurnGradient, Turns

THAWED = (
    "a parameter was frozen when the training began, and now requires a gradient: several devices do not sum it; train"
    " on one"
)


class RanksTurnGradient(TurnGradient):
    """Computes the gradient of each turn as that of the whole batch. All ranks make the same calls.

    gradients: of each optimizer's parameters, by name. stopwatch: stands still while this rank waits for the others.
    replicas: of the ranks' models; None of one rank.
    """

    def __init__(
        self,
        gradients: Mapping[str, RanksGradient],
        ranks: Ranks,
        device: torch.device,
        stopwatch: Stopwatch,
        take_unfrozen: Callable[[], Sequence[Any]],
        replicas: Replicas | None,
    ) -> None:
        super().__init__(take_unfrozen)
        self._ranks, self._device, self._stopwatch, self._replicas = ranks, device, stopwatch, replicas
        self._gradients = gradients
        self._own, self._share = 1, 1.0
        self._batch: tuple[int, ...] = ()
        self._num_turns = 0
        """Turns of this batch so far."""

    def begin(self, own: int, share: float, batch: tuple[int, ...]) -> None:
        """Begin a batch. own: this rank's samples. share: the weight of their mean gradient in the batch's. batch:
        seed, epoch and number of the batch, for random numbers of the optimizers."""
        self._own, self._share, self._batch, self._num_turns = own, share, batch, 0

    def stepping(self) -> AbstractContextManager[None]:
        """Return the context of the optimizer's step in a turn: it draws the same on all ranks."""
        self._num_turns += 1
        return drawn_alike(self._device, *self._batch, self._num_turns) if self._ranks.world > 1 else nullcontext()

    def next_turn(self, turns: Turns) -> Any:
        """Return what `training_step` yields next; None at the end.

        Raises ValueError if ranks take different turns: they would wait for each other for ever.
        """
        with nullcontext() if self._replicas is None else self._replicas.watched():
            turn = super().next_turn(turns)
        self._stopwatch.pause()
        turn_names = self._ranks.gather([_name(turn)])
        self._stopwatch.go_on()
        if len(set(turn_names)) > 1:
            each = ", ".join(f"{name} on rank {rank}" for rank, name in enumerate(turn_names))
            raise ValueError(f"training_step() yielded {each}: the turns have to be the same on all devices")
        return turn

    def compute(self, name: str, loss: Any) -> None:
        """Leave the whole batch's gradient in the optimizer's parameters. loss: of this rank's samples, scaled."""
        if self._take_unfrozen() and self._ranks.world > 1:
            raise ValueError(THAWED)
        gradient = self._gradients[name]
        gradient.begin(self._own, self._share)
        gradient.add(loss, self._own, last=True)
        self._stopwatch.pause()
        gradient.end()
        self._stopwatch.go_on()

    def close(self) -> None:
        """Remove the hooks from the parameters."""
        for gradient in self._gradients.values():
            gradient.close()


def _name(turn: Any) -> str:
    """Return the name of a turn, for a comparison and a message; what is no turn is refused afterwards."""
    if turn is None:
        return "no more losses"
    return repr(turn[0]) if isinstance(turn, tuple) and turn else type(turn).__name__
