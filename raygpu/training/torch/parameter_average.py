"""An exponential moving average of a model, on which its training is evaluated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    (torch.optim.swa_utils). Other parameters and buffers have no average.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        kept = [buffer for buffer in model.buffers() if buffer.is_floating_point() or buffer.is_complex()]
        self._model = model
        self.values: list[torch.Tensor] = [*trained, *kept]
        """Parameters and buffers of the model."""
        self.averages: list[torch.Tensor] | None = None
        """The average of each; None before the first step."""
        self._update = get_ema_multi_avg_fn(decay)

    @torch.no_grad()
    def update(self) -> None:
        """Take the present values into the averages, after a step."""
        if self.averages is None:
            self.averages = [value.detach().clone() for value in self.values]
            return
        by_kind: dict[Any, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        for average, value in zip(self.averages, self.values, strict=True):
            averages, values = by_kind.setdefault((value.dtype, value.device), ([], []))
            averages.append(average)
            values.append(value.detach())
        for averages, values in by_kind.values():
            self._update(averages, values, 0)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the model have the averages in the place of its own values."""
        if self.averages is None:
            yield
            return
        own = [value.detach().clone() for value in self.values]
        self._write(self.averages)
        try:
            yield
        finally:
            self._write(own)

    @torch.no_grad()
    def _write(self, tensors: list[torch.Tensor]) -> None:
        for value, tensor in zip(self.values, tensors, strict=True):
            value.copy_(tensor)

    def state_dicts(self) -> dict[str, Any]:
        """Return `model`, the averaged state dict, and the one with which the training goes on."""
        own = _copied(self._model.state_dict())
        with self.in_place():
            averaged = _copied(self._model.state_dict())
        return {"model": averaged, UNAVERAGED: own}

    def load_average(self, state: Mapping[str, Any]) -> None:
        """Take the averages of a checkpoint, whose own values the model has by now."""
        own = [value.detach().clone() for value in self.values]
        self._model.load_state_dict(state["model"])
        self.averages = [value.detach().clone() for value in self.values]
        self._write(own)


def _copied(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state dict with copies of its tensors in host memory."""
    return {
        name: value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value
        for name, value in state.items()
    }


def unaveraged(state: Mapping[str, Any]) -> Mapping[str, torch.Tensor]:
    """Return the state dict with which the training of a checkpoint goes on."""
    found: Mapping[str, torch.Tensor] = state.get(UNAVERAGED, state["model"])
    return found
