"""The loss scale of one torch training in fp16, by torch.amp.GradScaler."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from raygpu.experiment import Mean, Sum
from raygpu.training.loss_scaling import BACKOFF, GROWTH, GROWTH_STEPS, INITIAL_SCALE, LOWEST_SCALE


@dataclass(slots=True)
class _Step:
    """The part of an optimizer that GradScaler uses."""

    param_groups: list[dict[str, Any]]
    step: Callable[[], None]


class LossScale:
    """The loss scale of one training.

    enabled: whether there is one; otherwise no method does anything but `step`, which takes every step.
    """

    def __init__(self, device: torch.device, *, enabled: bool) -> None:
        self.enabled = enabled
        self._device = device
        self._scaler = torch.amp.GradScaler(device.type, INITIAL_SCALE, GROWTH, BACKOFF, GROWTH_STEPS, enabled)
        self._pending: _Step | None = None
        """The step whose gradients are unscaled already."""
        self._unscaled: Sequence[torch.Tensor] = ()

    def scaled(self, loss: Any) -> Any:
        """Return a result of `loss` times the scale: for the gradient, not to be reported."""
        if not self.enabled:
            return loss
        if isinstance(loss, Mean | Sum):
            return replace(loss, total=self._scaler.scale(torch.as_tensor(loss.total, device=self._device)))
        return self._scaler.scale(loss) if isinstance(loss, torch.Tensor) else loss

    def scaled_part(self, loss: Any) -> Any:
        """Return the loss of a part of a batch times the scale. Raises TypeError for a `Mean` whose denominator has a
        gradient: that would not be scaled."""
        if self.enabled and isinstance(loss, Mean) and torch.is_tensor(loss.weight) and loss.weight.requires_grad:
            raise TypeError(
                "loss() returned a Mean whose weight has a gradient, which fp16 does not scale in parts of a batch: use"
                " bf16 or float32"
            )
        return self.scaled(loss)

    def unscale(self, parameters: Sequence[torch.Tensor], *, overflowed: bool | None = None) -> None:
        """Divide the parameters' gradients by the scale; call it before they are clipped, and before `step`.

        overflowed: whether the gradient is not finite on some rank, where each has a part of it.
        """
        if not self.enabled:
            return
        checked, self._unscaled = [*map(_real, parameters)], parameters
        if overflowed is not None:
            overflow_flag = torch.zeros(1, device=self._device)
            overflow_flag.grad = torch.full_like(overflow_flag, math.inf if overflowed else 0.0)
            checked.append(overflow_flag)
        if any(tensor.grad is not None for tensor in checked):
            self._pending = _Step([{"params": checked}], lambda: None)
            self._scaler.unscale_(self._pending)

    def unscaled_square(self, square: torch.Tensor) -> torch.Tensor:
        """Return the square of the norm of a gradient of a scaled loss, of the loss itself."""
        return square / self._scaler.scale(torch.ones((), device=square.device)) ** 2

    def step(self, take: Callable[[], None]) -> None:
        """Take a step unless a gradient is not finite, drop the gradients, and adapt the scale."""
        pending, self._pending = self._pending, None
        unscaled, self._unscaled = self._unscaled, ()
        if pending is None:
            return take()
        pending.step = take
        self._scaler.step(pending)
        self._scaler.update()
        for parameter in unscaled:
            parameter.grad = None
        return None

    def reported(self, loss: float) -> float:
        """Return the loss of an epoch; NaN if gradients are never finite: see `LOWEST_SCALE`."""
        return math.nan if self._scaler.get_scale() < LOWEST_SCALE else loss

    def state_dict(self) -> dict[str, Any]:
        """Return GradScaler's state; empty without a scale."""
        return self._scaler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state of `state_dict`; of a training without a scale, nothing."""
        if self.enabled and state:
            self._scaler.load_state_dict(dict(state))


def _real(parameter: torch.Tensor) -> torch.Tensor:
    """Return a parameter; of a complex one, which GradScaler does not take, a real view with a view of its gradient."""
    if parameter.grad is None or not parameter.is_complex():
        return parameter
    parameter.grad = parameter.grad.resolve_conj()
    view = torch.view_as_real(parameter.detach().resolve_conj())
    view.grad = torch.view_as_real(parameter.grad)
    return view


def scaler_state(scale: float, growth_steps: int) -> dict[str, Any]:
    """Return the state of a GradScaler. growth_steps: since the scale has changed."""
    return {
        "scale": scale,
        "growth_factor": GROWTH,
        "backoff_factor": BACKOFF,
        "growth_interval": GROWTH_STEPS,
        "_growth_tracker": growth_steps,
    }
