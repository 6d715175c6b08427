"""An exponential moving average of a model, on which its training is evaluated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

UNAVERAGED = "unaveraged"
"""Entry of a checkpoint: the state dict with which a training goes on, where `model` is the average."""
AVERAGED = "averaged"
"""Entry of a checkpoint: the names of the parameters that have an average."""


def average_dtype(tensor: torch.Tensor) -> torch.dtype:
    """Return the dtype of a tensor's average: float32 for half precision, whose last digit is more than a step moves
    it."""
    return torch.float32 if tensor.dtype in (torch.bfloat16, torch.float16) else tensor.dtype


class ParameterAverage:
    """Moving averages of a model's trained parameters and of its floating-point buffers, as BatchNorm's statistics.

    After the first step they are the model's own values; each later step moves them by `1 - decay` of the way to those
    (torch.optim.swa_utils). Values of a buffer that a step leaves as they are, infinite ones too, are kept to the bit.
    Other parameters and buffers have no average. Averages of half precision are kept in float32, and rounded where they
    are evaluated.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        places = {id(buffer): (module, name) for module in model.modules()
                  for name, buffer in module.named_buffers(recurse=False)
                  if buffer.is_floating_point() or buffer.is_complex()}  # fmt: skip
        self._places = list(places.values())
        """Module and name of each buffer: a step may put another tensor in its place."""
        self._model, self._decay = model, decay
        self.averages: list[torch.Tensor] | None = None
        """The average of each; None before the first step."""
        self._update = get_ema_multi_avg_fn(decay)

    def use(self, decay: float) -> None:
        """Go on with another decay."""
        if decay != self._decay:
            self._decay, self._update = decay, get_ema_multi_avg_fn(decay)

    @property
    def _buffers(self) -> list[torch.Tensor]:
        return [getattr(module, name) for module, name in self._places]

    @property
    def values(self) -> list[torch.Tensor]:
        """Parameters and buffers of the model."""
        return [*self._trained, *self._buffers]

    @torch.no_grad()
    def update(self) -> None:
        """Take the present values into the averages, after a step."""
        if self.averages is None:
            self.averages = [_begun(value) for value in self.values]
            return
        by_kind: dict[Any, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        for average, value in zip(self.averages, self._trained, strict=False):
            averages, values = by_kind.setdefault((average.dtype, value.device), ([], []))
            averages.append(average)
            values.append(value.detach().to(average.dtype))
        for averages, values in by_kind.values():
            self._update(averages, values, 0)
        for average, buffer in zip(self._of_buffers(), self._buffers, strict=True):
            value = buffer.to(average.dtype)
            average.copy_(torch.where(average == value, value, average.lerp(value, 1 - self._decay)))

    def take_in(self, unfrozen: Sequence[torch.Tensor]) -> None:
        """Average these parameters too, which no step has moved so far."""
        parameter_ids, place = {id(value) for value in self._trained}, len(self._trained)
        new = [value for value in unfrozen if id(value) not in parameter_ids]
        self._trained += new
        if self.averages is not None:
            self.averages[place:place] = [_begun(value) for value in new]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the model have the averages in the place of its own values, which lie where the averages were; those of
        half precision have copies.

        What an evaluation makes of a buffer is the average's.
        """
        if self.averages is None:
            yield
            return
        buffers = [buffer.clone() for buffer in self._buffers]
        in_half = [value for value in self._trained if average_dtype(value) != value.dtype]
        trained = [value.detach().clone() for value in in_half]
        pairs = list(zip(self._trained, self.averages, strict=False))
        _exchange(pairs)
        _write(self._buffers, self._of_buffers())
        try:
            yield
        finally:
            evaluated = [buffer.clone() for buffer in self._buffers]  # before the exchange: one may view a parameter
            _exchange(pairs[::-1])  # two may share memory: the last to write is the first to take back
            _write(in_half, trained)
            for average, value in zip(self._of_buffers(), evaluated, strict=True):
                average.copy_(torch.where(average.to(value.dtype) == value, average, value))
            _write(self._buffers, buffers)

    def _of_buffers(self) -> list[torch.Tensor]:
        """Return the averages of the buffers."""
        return (self.averages or [])[len(self._trained) :]

    def _saved_buffers(self) -> set[int]:
        """Return the ids of the buffers that a state dict of the model holds."""
        names = self._model.state_dict().keys()
        return {id(buffer) for name, buffer in self._model.named_buffers(remove_duplicate=False) if name in names}

    def _in_half(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the averages of half precision by the names that a state dict of the model has."""
        averages = {id(value): average for value, average in zip(self.values, self.averages or [], strict=False)}
        named = (
            *self._model.named_parameters(remove_duplicate=False),
            *self._model.named_buffers(remove_duplicate=False),
        )
        for name, value in named:
            if id(value) in averages and average_dtype(value) != value.dtype:
                yield name, averages[id(value)]

    @property
    def names(self) -> list[str]:
        """Names of the parameters that have an average."""
        trained = set(map(id, self._trained))
        return [name for name, parameter in self._model.named_parameters() if id(parameter) in trained]

    def write_unrounded(self, state: dict[str, Any]) -> None:
        """Write to a state dict of the model, on the host, the averages that the model has rounded."""
        state.update((name, average.to("cpu", copy=True)) for name, average in self._in_half() if name in state)

    def load_average(self, state: Mapping[str, Any]) -> None:
        """Take the averages of a checkpoint, whose own values the model has by now, and keeps.

        A parameter that was unfrozen before the checkpoint has an average there, and goes on with it. A buffer that the
        checkpoint leaves out keeps the average that it has.
        """
        saved = self._saved_buffers()
        left_out = [
            (place, average.clone())
            for place, (average, buffer) in enumerate(zip(self._of_buffers(), self._buffers, strict=False))
            if id(buffer) not in saved
        ]
        self._model.load_state_dict(state["model"])
        names, trained = state.get(AVERAGED, ()), set(map(id, self._trained))  # none of a training without an average
        self._trained += [
            parameter
            for name, parameter in self._model.named_parameters()
            if id(parameter) not in trained and name in names
        ]
        self.averages = [_begun(value) for value in self.values]
        for name, average in self._in_half():
            average.copy_(state["model"].get(name, average))
        for place, average in left_out:
            self._of_buffers()[place].copy_(average)
        self._model.load_state_dict(unaveraged(state))


def _begun(value: torch.Tensor) -> torch.Tensor:
    """Return an average that begins with this value."""
    return value.detach().to(average_dtype(value), copy=True)


@torch.no_grad()
def _exchange(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Exchange parameters and their averages, pair by pair. An average of more digits stays as it is."""
    for parameter, average in pairs:
        current_value = parameter.detach().clone()
        parameter.copy_(average)
        if average.dtype == parameter.dtype:
            average.copy_(current_value)


@torch.no_grad()
def _write(tensors: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)


def unaveraged(state: Mapping[str, Any]) -> Mapping[str, torch.Tensor]:
    """Return the state dict with which the training of a checkpoint goes on."""
    model_state: Mapping[str, torch.Tensor] = state.get(UNAVERAGED, state["model"])
    return model_state
