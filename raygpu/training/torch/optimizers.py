"""SGD, Adam and AdamW by torch's fused operators, tested against torch.optim's own steps.

All parameters of a dtype and a device take one call, which on a GPU is one kernel or a few. `torch_private_api.py` says
why torch.optim itself is not used; `experiments/benchmarks/optimizers.py` measures both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from raygpu.training.hyperparameters import OptimizerSettings
from raygpu.training.torch.torch_private_api import fused_step

UNFROZEN = (
    "a parameter of shape {shape} was frozen when the training began, and now requires a gradient: the optimizer leaves"
    " it out; an optimizer() of the experiment's own may take it in"
)


class BuiltinOptimizer:
    """The optimizer that a trial's hyper-parameters name; `step` takes the learning rate. `use` changes its numbers."""

    own_lr: float | None = None
    """None: the learning rate of each step is given."""
    has_modes = False
    """Whether an evaluation has other parameters than the training: see `OwnOptimizer`."""

    def __init__(self, settings: OptimizerSettings, parameters: Iterable[torch.Tensor]) -> None:
        self.settings = settings
        everything = list(parameters)
        self.parameters = [parameter for parameter in everything if parameter.requires_grad]
        self._frozen = [parameter for parameter in everything if not parameter.requires_grad]
        self.num_steps = 0
        self.missed = [0] * len(self.parameters)
        """Steps in which each parameter had no gradient: Adam counts a parameter's own steps."""
        self.buffers = [[torch.zeros_like(p) for _ in range(settings.num_buffers)] for p in self.parameters]
        self._layouts = [(p.dtype, torch.empty_like(p).stride()) for p in self.parameters]
        """Dtype and strides of each parameter's buffers, for which the operators need them all."""

    def use(self, settings: OptimizerSettings) -> None:
        """Go on with other settings of the same kind: a momentum that is new begins at zero."""
        if settings is not self.settings:
            self.settings = settings
            self._fit_buffers()

    def _fit_buffers(self) -> None:
        """Keep as many buffers of each parameter as the settings ask for."""
        for parameter, buffers in zip(self.parameters, self.buffers, strict=True):
            missing = self.settings.num_buffers - len(buffers)
            buffers += [torch.zeros_like(parameter) for _ in range(missing)]
            del buffers[self.settings.num_buffers :]

    def evaluating(self) -> AbstractContextManager[None]:
        """Return a context in which the parameters are as they are."""
        return nullcontext()

    def take_unfrozen(self) -> list[torch.Tensor]:
        """Return no parameters. Raises ValueError if one was frozen when this was made, and is not any more."""
        for parameter in self._frozen:
            if parameter.requires_grad:
                raise ValueError(UNFROZEN.format(shape=tuple(parameter.shape)))
        return []

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Update the parameters that have a gradient, and drop the gradients; after `take_unfrozen`."""
        self.num_steps += 1
        groups: dict[Any, list[list[torch.Tensor]]] = defaultdict(list)
        numbers: dict[Any, list[int]] = defaultdict(list)
        copies = []
        rows = zip(self.parameters, self.buffers, self._layouts, strict=True)
        for place, (parameter, buffers, layout) in enumerate(rows):
            gradient, parameter.grad = parameter.grad, None
            if gradient is None:
                self.missed[place] += 1
                continue
            if gradient.is_sparse and self.settings.is_plain_sgd:
                parameter.add_(gradient, alpha=-lr)  # writes to the rows of the gradient alone
                continue
            p = _laid_out(parameter, layout)
            if p is not parameter:
                copies.append((parameter, p))
            tensors = real(p, _laid_out(gradient, layout), *buffers)
            kind = tensors[0].dtype, p.device
            groups[kind].append(tensors)
            numbers[kind].append(self.num_steps - self.missed[place])
        for kind, group in groups.items():
            parameters, gradients, *buffers = (list(tensors) for tensors in zip(*group, strict=True))
            fused_step(self.settings, parameters, gradients, buffers, lr=lr, numbers=numbers[kind])
        for parameter, copy in copies:
            parameter.copy_(copy)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps, of those that each parameter has missed, and the buffers of each parameter."""
        return {"num_steps": self.num_steps, "missed": list(self.missed), "buffers": self.buffers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copy a state of `state_dict` into this optimizer; buffers that are missing there begin at zero.

        A state of an array, or of an older version, has no steps that were missed.
        """
        self.num_steps = state["num_steps"]
        self.missed = list(state.get("missed", [0] * len(self.parameters)))
        for buffers, saved in zip(self.buffers, state["buffers"], strict=True):
            for place, buffer in enumerate(buffers):
                buffer.copy_(saved[place]) if place < len(saved) else buffer.zero_()


def _laid_out(tensor: torch.Tensor, layout: tuple[torch.dtype, tuple[int, ...]]) -> torch.Tensor:
    """Return a tensor with this dtype and these strides: itself, or a copy."""
    dtype, strides = layout
    if tensor.is_sparse:
        tensor = tensor.to_dense()
    if tensor.dtype == dtype and tensor.stride() == strides:
        return tensor.resolve_neg()
    return torch.empty_strided(tensor.shape, strides, dtype=dtype, device=tensor.device).copy_(tensor)


def real(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Return complex tensors as pairs of real numbers in the same memory, as torch.optim does; others unchanged."""
    return [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in tensors]
