"""SGD, Adam and AdamW as torch.optim defines them, on plain tensors.

torch.optim itself is not used here because making any of its optimizers imports torch._dynamo and sympy, which in a
fresh worker takes as long as importing torch did, and every packed trial is a worker. Each rule is tested against
torch.optim's own step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from raygpu.training.hyperparameters import OptimizerSettings


class Optimizer:
    """The optimizer that a trial's hyper-parameters name; `step` takes the learning rate."""

    def __init__(self, settings: OptimizerSettings, parameters: Iterable[torch.Tensor]) -> None:
        self.settings = settings
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.num_steps = 0
        self.buffers = [[torch.zeros_like(p) for _ in range(settings.num_buffers)] for p in self.parameters]

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Update the parameters that have a gradient, and drop the gradients."""
        self.num_steps += 1
        for parameter, buffers in zip(self.parameters, self.buffers, strict=True):
            if parameter.grad is None:
                continue
            p, gradient, *own = real(parameter, parameter.grad, *buffers)
            if self.settings.optimizer == "sgd":
                self._sgd(p, gradient, own, lr)
            else:
                self._adam(p, gradient, own, lr)
            parameter.grad = None

    def _sgd(self, p: torch.Tensor, gradient: torch.Tensor, buffers: list[torch.Tensor], lr: float) -> None:
        """Update one parameter as torch.optim.SGD does, with dampening 0."""
        s = self.settings
        if s.weight_decay:
            gradient = gradient.add(p, alpha=s.weight_decay)
        if buffers:
            (velocity,) = buffers
            velocity.mul_(s.momentum).add_(gradient)
            gradient = gradient.add(velocity, alpha=s.momentum) if s.nesterov else velocity
        p.add_(gradient, alpha=-lr)

    def _adam(self, p: torch.Tensor, gradient: torch.Tensor, buffers: list[torch.Tensor], lr: float) -> None:
        """Update one parameter as torch.optim.Adam and AdamW do; AdamW's weight decay acts on the parameter, not the
        gradient."""
        s = self.settings
        if s.optimizer == "adamw":
            p.mul_(1 - lr * s.weight_decay)
        elif s.weight_decay:
            gradient = gradient.add(p, alpha=s.weight_decay)
        mean, square = buffers
        beta1, beta2 = s.betas
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        correction1 = 1 - beta1**self.num_steps
        correction2 = 1 - beta2**self.num_steps
        denominator = square.sqrt().div_(correction2**0.5).add_(s.eps)
        p.addcdiv_(mean, denominator, value=-lr / correction1)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps, and the buffers of each parameter."""
        return {"num_steps": self.num_steps, "buffers": self.buffers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copy a state of `state_dict` into this optimizer."""
        self.num_steps = state["num_steps"]
        for own, saved in zip(self.buffers, state["buffers"], strict=True):
            for buffer, value in zip(own, saved, strict=True):
                buffer.copy_(value)


def real(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Return complex tensors as pairs of real numbers in the same memory, as torch.optim does; others unchanged."""
    return [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in tensors]
