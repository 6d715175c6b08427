"""SGD, Adam and AdamW for an array of models: every number is a row, one value a member.

torch.optim refuses a vector of learning rates. The rules are torch.optim's, as in `training/torch/optimizers.py`, and
both are tested against its steps. Here every tensor has the members as its first axis. Numbers that change with the
step or the member are computed on the host in double precision for a whole epoch, so that a step is tensors in, tensors
changed: it can be compiled, or captured as a CUDA graph. Nothing is summed over members, so one that diverges leaves
the others alone.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import assert_never

import numpy as np
import torch

from raygpu.training.fused.loss_scales import SKIPPED, adapt, new_scales, rows, undo, unscaled
from raygpu.training.fused.tile import Stacked
from raygpu.training.hyperparameters import OptimizerName, OptimizerSettings
from raygpu.training.torch.optimizers import real
from raygpu.training.torch.parameter_average import average_dtype

AVERAGE_RATE = "average_rate"
"""Column of the weight of a step's result in the moving average."""


class ArrayOptimizer:
    """The update rule of one kind of optimizer, with the terms that any member uses.

    members: of one kind (`settings.optimizer`); their numbers may differ. changing: names of numbers that a member may
    get later, so that the rule has their terms. has_loss_scale: whether each member has one (fp16).
    """

    def __init__(
        self, members: Sequence[OptimizerSettings], changing: Collection[str] = (), *, has_loss_scale: bool = False
    ) -> None:
        kinds = {settings.optimizer for settings in members}
        if len(kinds) != 1:
            raise ValueError(f"optimizer: members of one array need one kind, but have {', '.join(sorted(kinds))}")
        self.kind: OptimizerName = kinds.pop()
        self.uses_momentum = self.kind == "sgd" and ("momentum" in changing or any(s.momentum for s in members))
        self.uses_nesterov = "nesterov" in changing or any(s.nesterov for s in members)
        self.uses_decay = "weight_decay" in changing or any(s.weight_decay for s in members)
        self.uses_clipping = "clip_norm" in changing or any(s.clip_norm is not None for s in members)
        self.has_average = any(s.ema_decay is not None for s in members)
        """Whether an average of parameters and buffers comes first in the state, before what the rule keeps."""
        self.has_loss_scale = has_loss_scale
        """Whether the state of `loss_scales` comes next."""
        self.num_buffers = max(int(self.uses_momentum), *(s.num_buffers for s in members))
        columns_of: dict[OptimizerName, tuple[str, ...]] = {
            "sgd": ("lr", "momentum", "nesterov", "weight_decay", "clip_norm"),
            "adam": ("step_size", "rate1", "beta2", "rate2", "root2", "eps", "weight_decay", "clip_norm"),
            "adamw": ("step_size", "rate1", "beta2", "rate2", "root2", "eps", "shrink", "clip_norm"),
        }
        counted = ("lr", "steps", "log_beta1", "log_beta2") if has_loss_scale and self.kind != "sgd" else ()
        averaging = (AVERAGE_RATE,) if self.has_average else ()
        self.columns = (*columns_of[self.kind], *counted, *averaging)

    @property
    def program(self) -> tuple[str | bool, ...]:
        """Key of a step's operations; arrays with equal keys may share a compiled program."""
        uses = (self.uses_momentum, self.uses_nesterov, self.uses_decay, self.uses_clipping)
        return (self.kind, *uses, self.has_average, self.has_loss_scale)

    def new_state(self, parameters: Stacked, buffers: Stacked) -> list[Stacked]:
        """Return the optimizer's state before the first step: zeros, and loss scales. buffers: of the models."""
        first = next(iter(parameters.values()))
        return [
            *([_averages(parameters | floating(buffers))] if self.has_average else []),
            *([new_scales(len(first), first.device)] if self.has_loss_scale else []),
            *(_zeros(parameters) for _ in range(self.num_buffers)),
        ]

    def average(self, state: list[Stacked]) -> Stacked:
        """Return the average in an optimizer's state; empty without one."""
        return state[0] if self.has_average else {}

    def evaluated(self, state: list[Stacked], stepped: Stacked) -> Stacked:
        """Return parameters and buffers with the averages in the place of their values, in the dtype of these."""
        averages = self.average(state)
        return stepped | {name: average.to(stepped[name].dtype) for name, average in averages.items()}

    def loss_scales(self, state: list[Stacked]) -> Stacked:
        """Return the members' loss scales in an optimizer's state; empty without them."""
        return state[int(self.has_average)] if self.has_loss_scale else {}

    def moments(self, state: list[Stacked]) -> list[Stacked]:
        """Return what the rule keeps for each parameter, without the average and the loss scales."""
        return state[self.has_average + self.has_loss_scale :]

    def numbers(
        self, members: Sequence[OptimizerSettings], epoch: int, steps_per_epoch: int, epochs: int
    ) -> torch.Tensor:
        """Return the numbers of each step of an epoch (counted from 1), float64 (steps, columns, width)."""
        steps = np.arange((epoch - 1) * steps_per_epoch, epoch * steps_per_epoch)
        table = np.empty((steps_per_epoch, len(self.columns), len(members)))
        for place, settings in enumerate(member.in_epoch(epoch) for member in members):
            lrs = settings.lr_at_each(steps, steps_per_epoch, epochs)
            for column, values in enumerate(self._numbers(settings, steps, lrs)):
                table[:, column, place] = values
        return torch.from_numpy(table)

    def _numbers(self, s: OptimizerSettings, steps: np.ndarray, lrs: np.ndarray) -> list[np.ndarray | float]:
        """Return one member's numbers of each step, in the order of `columns`."""
        clip_norm = np.inf if s.clip_norm is None else s.clip_norm
        rate = np.where(steps == 0, 1.0, 1.0 - (s.ema_decay or 0.0))  # the first step's result begins the average
        averaging = [rate] if self.has_average else []
        match self.kind:
            case "sgd":
                return [lrs, s.momentum, float(s.nesterov), s.weight_decay, clip_norm, *averaging]
            case "adam" | "adamw":
                beta1, beta2 = s.betas
                decay = 1 - lrs * s.weight_decay if self.kind == "adamw" else s.weight_decay
                step_size, root = lrs / (1 - beta1 ** (steps + 1)), (1 - beta2 ** (steps + 1)) ** 0.5
                counted: list[np.ndarray | float] = (
                    [lrs, steps + 1, _log(beta1), _log(beta2)] if self.has_loss_scale else []
                )
                return [step_size, 1 - beta1, beta2, 1 - beta2, root, s.eps, decay, clip_norm, *counted, *averaging]

    def step(self, parameters: Stacked, gradients: Stacked, state: list[Stacked], numbers: torch.Tensor) -> None:
        """Update parameters and their moments in place. numbers: (columns, width), one step of `numbers()`.

        With loss scales, the gradients are those of the scaled losses; a member whose gradient is not finite takes no
        step.
        """
        moments = self.moments(state)
        by_column = dict(zip(self.columns, numbers.unbind(0), strict=True))
        if not self.has_loss_scale:
            return self._step(parameters, gradients, moments, by_column)
        scales, changing = self.loss_scales(state), [parameters, *moments]
        gradients, finite = unscaled(gradients, scales)
        before = [{name: tensor.clone() for name, tensor in stack.items()} for stack in changing]
        if self.kind != "sgd":  # which of its steps this is, only the device knows
            steps = by_column["steps"] - scales[SKIPPED]
            by_column["step_size"] = by_column["lr"] / -torch.expm1(steps * by_column["log_beta1"])
            by_column["root2"] = (-torch.expm1(steps * by_column["log_beta2"])).sqrt()
        self._step(parameters, gradients, moments, by_column)
        undo(changing, before, finite)
        adapt(scales, finite)
        return None

    def _step(self, parameters: Stacked, gradients: Stacked, buffers: list[Stacked], n: Stacked) -> None:
        """Update parameters and their moments in place. n: numbers of this step by their columns' names, (width,)."""
        scale = _clip_scale(gradients, n["clip_norm"]) if self.uses_clipping else None
        # In the order of torch.optim's own operations: a float32 array differs from solo training by rounding alone.
        for name, parameter in parameters.items():
            tensors = real(parameter, gradients[name], *(buffer[name] for buffer in buffers))
            p, gradient, *moments = (_in_float32(tensor) for tensor in tensors)
            row = {column: _row(values, p) for column, values in n.items()}
            gradient = gradient if scale is None else gradient * _row(scale, p)
            match self.kind:
                case "sgd":
                    self._sgd(p, gradient, moments, row)
                case "adam" | "adamw":
                    self._adam(p, gradient, moments, row)
                case _:
                    assert_never(self.kind)
            for tensor, stepped in zip((tensors[0], *tensors[2:]), (p, *moments), strict=True):
                if stepped is not tensor:
                    tensor.copy_(stepped)

    def update_average(self, state: list[Stacked], stepped: Stacked, numbers: torch.Tensor) -> None:
        """Move the averages towards what a step has led to. stepped: parameters and buffers after the step."""
        for name, average in self.average(state).items():
            mean, tensor = real(average, stepped[name])
            rate = _row(numbers[self.columns.index(AVERAGE_RATE)], mean)
            tensor = tensor.to(mean.dtype)
            mask = (mean == tensor) | (rate == 1)  # to the bit, and if it is infinite
            mean.copy_(torch.where(mask, tensor, mean.lerp(tensor, rate)))

    def _sgd(self, p: torch.Tensor, gradient: torch.Tensor, own: list[torch.Tensor], row: Stacked) -> None:
        if self.uses_decay:
            gradient = torch.addcmul(gradient, p, row["weight_decay"])
        if self.uses_momentum:
            (velocity,) = own
            velocity.mul_(row["momentum"]).add_(gradient)
            if self.uses_nesterov:
                looking_ahead = torch.addcmul(gradient, velocity, row["momentum"])
                gradient = torch.where(row["nesterov"] > 0, looking_ahead, velocity)
            else:
                gradient = velocity
        p.addcmul_(gradient, row["lr"], value=-1)

    def _adam(self, p: torch.Tensor, gradient: torch.Tensor, own: list[torch.Tensor], row: Stacked) -> None:
        if self.kind == "adamw":
            p.mul_(row["shrink"])
        elif self.uses_decay:
            gradient = torch.addcmul(gradient, p, row["weight_decay"])
        mean, square = own
        mean.lerp_(gradient, row["rate1"])
        square.mul_(row["beta2"]).addcmul_(gradient * row["rate2"], gradient)
        denominator = square.sqrt().div_(row["root2"]).add_(row["eps"])
        p.addcdiv_(mean * row["step_size"], denominator, value=-1)


def floating(buffers: Stacked) -> Stacked:
    """Return the buffers that have an average: numbers with a fraction."""
    return {name: tensor for name, tensor in buffers.items() if tensor.is_floating_point() or tensor.is_complex()}


def _zeros(stack: Stacked) -> Stacked:
    return {name: torch.zeros_like(tensor) for name, tensor in stack.items()}


def _averages(stack: Stacked) -> Stacked:
    return {name: torch.zeros_like(tensor, dtype=average_dtype(tensor)) for name, tensor in stack.items()}


def _in_float32(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in half precision in float32, in which Adam's `eps` is more than zero; others unchanged."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def _log(number: float) -> float:
    return math.log(number) if number else -math.inf


def _row(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Shape a value for each member to multiply a stacked tensor."""
    return rows(values.to(like.dtype), like)


def _clip_scale(gradients: Stacked, clip_norm: torch.Tensor) -> torch.Tensor:
    """Return the factor by which torch.nn.utils.clip_grad_norm_ would scale each member's gradient."""
    norms = [torch.linalg.vector_norm(g.reshape(len(g), -1), dim=1).to(clip_norm.dtype) for g in gradients.values()]
    total_norm = torch.linalg.vector_norm(torch.stack(norms), dim=0)
    return torch.where(clip_norm.isinf(), 1.0, (clip_norm / (total_norm + 1e-6)).clamp(max=1.0))
