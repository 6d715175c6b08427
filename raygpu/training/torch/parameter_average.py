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


class ParameterAverage:
    """Moving averages of a model's trained parameters and of its floating-point buffers, as BatchNorm's statistics.

    After the first step they are the model's own values; each later step moves them by `1 - decay` of the way to those
    (torch.optim.swa_utils). Values of a buffer that a step leaves as they are, infinite ones too, are kept to the bit.
    Other parameters and buffers have no average.
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
            self.averages = [value.detach().clone() for value in self.values]
            return
        by_kind: dict[Any, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        for average, value in zip(self.averages, self._trained, strict=False):
            averages, values = by_kind.setdefault((value.dtype, value.device), ([], []))
            averages.append(average)
            values.append(value.detach())
        for averages, values in by_kind.values():
            self._update(averages, values, 0)
        for average, buffer in zip(self._of_buffers(), self._buffers, strict=True):
            average.copy_(torch.where(average == buffer, buffer, average.lerp(buffer, 1 - self._decay)))

    def take_in(self, unfrozen: Sequence[torch.Tensor]) -> None:
        """Average these parameters too, which no step has moved so far."""
        parameter_ids, place = {id(value) for value in self._trained}, len(self._trained)
        new = [value for value in unfrozen if id(value) not in parameter_ids]
        self._trained += new
        if self.averages is not None:
            self.averages[place:place] = [value.detach().clone() for value in new]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the model have the averages in the place of its own values, which lie where the averages were.

        What an evaluation makes of a buffer is the average's.
        """
        if self.averages is None:
            yield
            return
        buffers = [buffer.clone() for buffer in self._buffers]
        self._exchange()
        _write(self._buffers, self._of_buffers())
        try:
            yield
        finally:
            evaluated = [buffer.clone() for buffer in self._buffers]  # before the exchange: one may view a parameter
            self._exchange()
            _write(self._of_buffers(), evaluated)
            _write(self._buffers, buffers)

    def _of_buffers(self) -> list[torch.Tensor]:
        """Return the averages of the buffers."""
        return (self.averages or [])[len(self._trained) :]

    @torch.no_grad()
    def _exchange(self) -> None:
        """Exchange the parameters and their averages, tensor by tensor."""
        for parameter, average in zip(self._trained, self.averages or [], strict=False):
            current_value = parameter.detach().clone()
            parameter.copy_(average)
            average.copy_(current_value)

    def load_average(self, state: Mapping[str, Any]) -> None:
        """Take the averages of a checkpoint, whose own values the model has by now."""
        current_values = [value.detach().clone() for value in self.values]
        self._model.load_state_dict(state["model"])
        self.averages = [value.detach().clone() for value in self.values]
        _write(self.values, current_values)


@torch.no_grad()
def _write(tensors: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)


def unaveraged(state: Mapping[str, Any]) -> Mapping[str, torch.Tensor]:
    """Return the state dict with which the training of a checkpoint goes on."""
    model_state: Mapping[str, torch.Tensor] = state.get(UNAVERAGED, state["model"])
    return model_state
