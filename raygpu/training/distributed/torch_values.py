"""Loss and metrics of a torch experiment on chosen samples, untrained or fitted to some of them: see `loss_check`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from raygpu.experiment import Arrays, Experiment
from raygpu.search.hyperparameters import Hyperparameters
from raygpu.training.deep_copy import deep_copy
from raygpu.training.distributed.constant_draws import ConstantDraws
from raygpu.training.distributed.loss_check import (
    BUDGET_S,
    DOUBLE,
    HALF,
    OUTPUT_STEPS,
    SINGLE,
    PartValues,
    Value,
    fit_shares,
    loss_and_metrics,
    try_values,
)
from raygpu.training.own_copy import own_copy
from raygpu.training.torch.data import Tensors, cast, rows, tensors
from raygpu.training.torch.experiment import forward, overrides, summed_loss
from raygpu.training.torch.models import initial_model
from raygpu.training.torch.random_outputs import random_outputs
from raygpu.training.torch.reduction import backward, dense, objective
from raygpu.training.torch.seeding import seed_all
from raygpu.training.torch.training_mode import set_training

MODEL_STEPS = 40
"""Steps by which a model is fitted to some samples, where a loss needs more than outputs."""
COMPARED_STEPS = 5
"""Steps between two comparisons."""
STEP = 0.05
"""Length of such a step, as a share of the size of a parameter."""
SMALLEST = 0.01
"""Smallest size of a parameter that counts, as biases begin at 0."""


class TorchValues:
    """An untrained model on the CPU, in float64 if its code takes that, and in evaluation mode unless a step needs
    another.

    The loss is evaluated with gradients recorded, as in a training, unless it then needs more than outputs.
    with_metrics: whether the loss and the metrics of an evaluation are meant; else it is the loss of a training.
    """

    def __init__(
        self, experiment: Experiment, hp: Mapping[str, Any], inputs: Arrays, targets: Arrays, *, with_metrics: bool
    ) -> None:
        self._experiment, self.with_metrics = experiment, with_metrics
        self._hp, self._arrays = hp, (inputs, targets)
        self._has_own_step = overrides(experiment, "training_step") and not with_metrics  # which are of an evaluation
        self.exact = self._with_gradient = self._in_training = self._random = False
        self._held: tuple[Any, Tensors, Any] | None = None
        with_gradient = (False,) if with_metrics else (True, False)
        in_training = (False, True) if self._has_own_step else (False,)
        if not any(self._works(*each) for each in product((torch.float64, None), with_gradient, in_training)):
            self._in_training = self._has_own_step
            self._prepare(None)  # what its code raises shows when it is looked at

    def _works(self, dtype: torch.dtype | None, with_gradient: bool, in_training: bool) -> bool:
        """Return whether the model's code runs with numbers of this dtype; None for its own.

        in_training: whether the model trains, as a step may need: of auxiliary outputs that an evaluation lacks.
        """
        self.exact, self._with_gradient, self._in_training = dtype is not None, with_gradient, in_training
        try:
            self._prepare(dtype)
            try_values(self, min(4, self._count) if self._has_own_step else 2, self._count)
        except Exception:  # noqa: BLE001 - code that names float32, or reads what only a training leaves
            return False
        return True

    def _prepare(self, dtype: torch.dtype | None) -> None:
        model = initial_model(self._experiment, Hyperparameters.of(self._hp), seed=0)
        half = any(p.dtype in (torch.float16, torch.bfloat16) for p in model.parameters())
        self.rounding = DOUBLE if self.exact else HALF if half else SINGLE
        self.model: nn.Module = model if dtype is None else model.double()
        self.model.eval()
        self._inputs, self._targets = (cast(tensors(part), dtype) for part in self._arrays)

    def values(self, chosen: np.ndarray, *, loss_alone: bool = False) -> dict[str, Value]:
        """Return the loss and the metrics of these samples, or the loss, from a forward pass of these alone."""
        with_metrics = self.with_metrics and not loss_alone
        with torch.set_grad_enabled(self._with_gradient):
            if self._has_own_step:
                with self._in_step_mode():
                    return {"loss": Value.of(self._loss(self._experiment, self.model, torch.from_numpy(chosen)))}
            outputs = forward(self.model, rows(self._inputs, torch.from_numpy(chosen)))
            targets = rows(self._targets, torch.from_numpy(chosen))
            return loss_and_metrics(self._experiment, outputs, targets, with_metrics=with_metrics)

    @contextlib.contextmanager
    def _in_step_mode(self) -> Iterator[None]:
        """Let the model train while a step needs that; its buffers are the same afterwards."""
        if not self._in_training:
            yield
            return
        before = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        train_steadily(self.model)
        try:
            yield
        finally:
            self.model.eval()
            for buffer, values in before:
                buffer.data.copy_(values)

    @property
    def _count(self) -> int:
        """Number of samples that there are."""
        return len(next(iter(tree_leaves(self._targets))))

    def values_without_noise(self, chosen: np.ndarray) -> dict[str, Value] | None:
        """Return `values` with a constant in place of torch's uniform and normal numbers; None if others are drawn."""
        with ConstantDraws() as draws:
            values = self.values(chosen)
        return None if draws.others else values

    @torch.no_grad()
    def hold(self, chosen: np.ndarray) -> None:
        """Keep the outputs of these samples for `held`. Raises ValueError if they cannot be cut into samples."""
        if self._has_own_step:
            raise ValueError("training_step() has no outputs")
        outputs = forward(self.model, rows(self._inputs, torch.from_numpy(chosen)))
        leaves = tree_leaves(outputs)
        if not all(isinstance(leaf, torch.Tensor) and leaf.shape[:1] == (len(chosen),) for leaf in leaves):
            raise ValueError("outputs that are not one for each sample")
        self._random = False
        if self._with_gradient:
            outputs = tree_map(lambda leaf: leaf.requires_grad_(leaf.is_floating_point()), outputs)
        self._held = outputs, rows(self._targets, torch.from_numpy(chosen)), own_copy(self._experiment)

    def draw(self, seed: int) -> None:
        """Put random numbers in the place of the kept outputs."""
        assert self._held is not None
        outputs, *others = self._held
        self._held, self._random = (random_outputs(outputs, seed), *others), True

    def held(self, places: slice, seed: int = 0) -> dict[str, Value]:
        """Return the loss and the metrics of a part of the kept outputs, of random ones the metrics alone; state and
        random numbers begin anew."""
        assert self._held is not None
        outputs, targets, experiment = self._held
        seed_all(seed)
        with torch.set_grad_enabled(self._with_gradient):
            part = tree_map(lambda leaf: leaf[places].clone(), outputs)
            some, own = rows(targets, places), own_copy(experiment)
            return loss_and_metrics(own, part, some, with_loss=not self._random, with_metrics=self.with_metrics)

    def fitted(self, chosen: np.ndarray) -> Iterator[PartValues]:
        """Yield functions that return values of a part of these samples, for a model that fits some of them ever
        better; of a loss that needs outputs alone, outputs that do. Raises any exception of the experiment."""
        try:
            self.hold(chosen)
        except ValueError:
            yield from self._fitted_models(chosen)
            return
        assert self._held is not None
        (outputs, *others), shares, scales = self._held, torch.from_numpy(fit_shares(len(chosen))), None
        for length in OUTPUT_STEPS:
            gradients = self._gradients_of_outputs(outputs, *others)
            leaves, layout = tree_flatten(outputs)
            if scales is None:  # rows that are one, as those of learned weights of losses, stay so
                pairs = zip(leaves, gradients, strict=True)
                scales = [_scale(each, shares * (leaf.stride(0) != 0)) for leaf, each in pairs]
            moved = [leaf - length * scale * each for leaf, each, scale in zip(leaves, gradients, scales, strict=True)]
            outputs = tree_unflatten([each.to(leaf) for leaf, each in zip(leaves, moved, strict=True)], layout)
            self._held = outputs, *others
            yield self.held

    def _gradients_of_outputs(self, outputs: Any, targets: Tensors, experiment: Any) -> list[torch.Tensor]:
        """Return the gradient of the loss for each tensor of these outputs; zeros for those without one."""
        leaves, layout = tree_flatten(outputs)
        moving = [leaf.detach().requires_grad_(leaf.is_floating_point()) for leaf in leaves]
        used = [leaf for leaf in moving if leaf.requires_grad]
        with torch.enable_grad():
            copied = tree_unflatten([leaf.clone() for leaf in moving], layout)
            loss = objective(own_copy(experiment).loss(copied, targets))
        found = iter(torch.autograd.grad(loss, used, allow_unused=True))
        gradients = [next(found) if leaf.requires_grad else None for leaf in moving]
        pairs = zip(leaves, gradients, strict=True)
        return [torch.zeros(leaf.shape) if each is None else each.nan_to_num(0.0) for leaf, each in pairs]

    def _fitted_models(self, chosen: np.ndarray) -> Iterator[PartValues]:
        """Fit a copy of the model to some samples, in place of the model while values are taken."""
        untrained, some = self.model, torch.from_numpy(chosen[fit_shares(len(chosen)) > 0.5])
        began = time.perf_counter()
        self.model = self._model()
        try:
            for number in range(MODEL_STEPS):
                with self._in_step_mode():
                    loss = self._loss(own_copy(self._experiment), self.model, some)
                backward(loss)
                _take_step(self.model)
                if number % COMPARED_STEPS == COMPARED_STEPS - 1:
                    yield lambda places, seed: self.values(chosen[places])
                if time.perf_counter() - began > BUDGET_S:
                    return
        finally:
            self.model = untrained

    def _fresh(self) -> tuple[Experiment, nn.Module]:
        """Return copies of the experiment and of a new model, both without earlier calls."""
        experiment = own_copy(self._experiment)
        model = initial_model(experiment, Hyperparameters.of(self._hp), seed=0)
        model = model.double() if self.exact else model
        set_training(model)
        return experiment, model

    def _model(self) -> nn.Module:
        """Return a copy of the model; where a forward pass has left a tensor with a history in it, as the hooks of
        torch's old norms do, the model as it was made."""
        try:
            return deep_copy(self.model)
        except RuntimeError:
            model = self._fresh()[1]
            model.eval()
            return model

    def _in_training_mode(self) -> nn.Module:
        """Return such a copy in training mode."""
        model = self._model()
        set_training(model)
        return model

    def _loss(self, experiment: Experiment, model: nn.Module, some: torch.Tensor) -> Any:
        """Return the training loss of these samples; without augmentation, unless a step of its own has it."""
        inputs, targets = rows(self._inputs, some), rows(self._targets, some)
        if overrides(experiment, "training_step"):
            with torch.enable_grad():  # which it may use itself
                return summed_loss(experiment, model, inputs, targets, Hyperparameters.of(self._hp))
        return experiment.loss(forward(model, inputs), targets)


def train_steadily(model: nn.Module) -> None:
    """Set training mode, except for layers that draw random numbers then and BatchNorm, which is reported
    separately."""
    set_training(model)
    for module in model.modules():
        if isinstance(module, _BatchNorm | _DropoutNd):
            module.eval()


def _scale(gradient: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Return the factors of the samples of a gradient (samples, ...) whose largest numbers become these shares; 0 where
    it is 0."""
    largest = gradient.abs().nan_to_num(0.0).reshape(len(gradient), -1).amax(1)
    factors = torch.where(largest > 0, shares.to(largest) / largest, 0.0)
    return factors.reshape(-1, *[1] * (gradient.dim() - 1))


@torch.no_grad()
def _take_step(model: nn.Module) -> None:
    """Change each parameter by a share of its size, against its gradient, and drop the gradients."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            gradient = dense(parameter.grad).nan_to_num(0.0)
            length = STEP * max(_size(parameter), SMALLEST) / (_size(gradient) or 1.0)
            parameter.sub_(length * gradient)
        parameter.grad = None


def _size(values: torch.Tensor) -> float:
    """Return the root mean square."""
    return float(values.abs().square().mean().sqrt())
