"""Evaluate a torch experiment's loss on chosen samples, before it is trained in parts: see `loss_check`."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import tree_leaves, tree_map

from raygpu.experiment import Arrays, Experiment, Hyperparameters, Mean, Splits, Sum
from raygpu.training.data.generators import random_state_kept
from raygpu.training.distributed.constant_draws import ConstantDraws
from raygpu.training.distributed.loss_check import (
    DOUBLE,
    HALF,
    MIXED,
    SINGLE,
    Value,
    collated_with_others,
    depends_on_others,
    loss_and_metrics,
)
from raygpu.training.torch.data import Tensors, cast, rows, tensors
from raygpu.training.torch.experiment import forward, overrides, summed_loss
from raygpu.training.torch.models import initial_model
from raygpu.training.torch.python_state import changed_attribute, changed_freezing, frozen, plain_state
from raygpu.training.torch.random_outputs import random_outputs
from raygpu.training.torch.read_data import training_data
from raygpu.training.torch.reduction import backward, dense
from raygpu.training.torch.seeding import numpy_has_drawn, python_has_drawn, seed_all

COUNTED = 8
"""Number of steps that are looked at if a buffer counts them: others may begin to change later."""


class TorchLossEvaluator:
    """An untrained model on the CPU, in float64 if its code takes that.

    The loss is evaluated with gradients recorded, as in a training, unless it then needs more than outputs.
    with_metrics: whether the loss and the metrics of an evaluation are meant; else it is the loss of a training.
    """

    gradient_causes = (
        "scale_grad_by_freq, a layer that looks at the whole batch while it trains, or a hook on the gradient, which"
        " gets that of a raygpu.Mean before it is divided"
    )

    def __init__(
        self, experiment: Experiment, hp: Mapping[str, Any], inputs: Arrays, targets: Arrays, *, with_metrics: bool
    ) -> None:
        self._experiment, self._with_metrics = experiment, with_metrics
        self._hp, self._arrays = hp, (inputs, targets)
        self._has_own_step = overrides(experiment, "training_step") and not with_metrics  # which are of an evaluation
        self.exact = self._with_gradient = self._random = False
        self._held: tuple[Any, Tensors, Any] | None = None
        with_gradient = (False,) if with_metrics else (True, False)
        if not any(self._works(dtype, each) for dtype in (torch.float64, None) for each in with_gradient):
            self._prepare(None)  # what its code raises shows when it is looked at

    def _works(self, dtype: torch.dtype | None, with_gradient: bool) -> bool:
        """Return whether the model's code runs with numbers of this dtype; None for its own."""
        self.exact, self._with_gradient = dtype is not None, with_gradient
        try:
            self._prepare(dtype)
            self.values(np.arange(2))
        except Exception:  # noqa: BLE001 - code that names float32, or reads what only a training leaves
            return False
        return True

    def _prepare(self, dtype: torch.dtype | None) -> None:
        model = initial_model(self._experiment, Hyperparameters.of(self._hp), seed=0)
        half = any(p.dtype in (torch.float16, torch.bfloat16) for p in model.parameters())
        self.rounding = DOUBLE if self.exact else HALF if half else SINGLE
        self.model: nn.Module = (model if dtype is None else model.double()).eval()
        self._inputs, self._targets = (cast(tensors(part), dtype) for part in self._arrays)

    def values(self, chosen: np.ndarray) -> dict[str, Value]:
        """Return the loss and the metrics of these samples, from a forward pass of these alone."""
        with torch.set_grad_enabled(self._with_gradient):
            if self._has_own_step:
                return {"loss": Value.of(self._loss(self._experiment, self.model, torch.from_numpy(chosen)))}
            outputs = forward(self.model, rows(self._inputs, torch.from_numpy(chosen)))
            targets = rows(self._targets, torch.from_numpy(chosen))
            return loss_and_metrics(self._experiment, outputs, targets, with_metrics=self._with_metrics)

    def values_without_noise(self, chosen: np.ndarray) -> dict[str, Value] | None:
        """Return `values` with a constant in place of torch's uniform and normal numbers; None if others are drawn."""
        with ConstantDraws() as draws:
            values = self.values(chosen)
        return None if draws.others else values

    @torch.no_grad()
    def hold(self, chosen: np.ndarray, seed: int | None = None) -> None:
        """Keep the outputs of these samples for `held`; with a seed random numbers in their place. Raises ValueError if
        they cannot be cut into samples."""
        if self._has_own_step:
            raise ValueError("training_step() has no outputs")
        outputs = forward(self.model, rows(self._inputs, torch.from_numpy(chosen)))
        leaves = tree_leaves(outputs)
        if not all(isinstance(leaf, torch.Tensor) and leaf.shape[:1] == (len(chosen),) for leaf in leaves):
            raise ValueError("outputs that are not one for each sample")
        self._random, outputs = seed is not None, outputs if seed is None else random_outputs(outputs, seed)
        if self._with_gradient:
            outputs = tree_map(lambda leaf: leaf.requires_grad_(leaf.is_floating_point()), outputs)
        self._held = outputs, rows(self._targets, torch.from_numpy(chosen)), copy.deepcopy(self._experiment)

    def held(self, places: slice, seed: int = 0) -> dict[str, Value]:
        """Return the loss and the metrics of a part of the kept outputs, of random ones the metrics alone; state and
        random numbers begin anew."""
        assert self._held is not None
        outputs, targets, experiment = self._held
        seed_all(seed)
        with torch.set_grad_enabled(self._with_gradient):
            part = tree_map(lambda leaf: leaf[places].clone(), outputs)
            some, own = rows(targets, places), copy.deepcopy(experiment)
            return loss_and_metrics(own, part, some, with_loss=not self._random, with_metrics=self._with_metrics)

    @torch.no_grad()
    def least_samples(self) -> int:
        """Return the smallest number of samples on which the model trains: two with BatchNorm, for which one has no
        spread."""
        for count in (1, 2):
            model = self._model().train()
            some = torch.arange(count)
            try:
                outputs = forward(model, rows(self._inputs, some))
                loss = self._loss(self._experiment, model, some)
            except Exception:  # noqa: BLE001 - what one sample is too few for
                continue
            finite = all(bool(leaf.isfinite().all()) for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor))
            if finite and loss is not None:
                return count
        return 1

    @torch.no_grad()
    def moving_buffers(self) -> list[str]:
        """Return the names of buffers that a step of training changes, without those of BatchNorm; if one of them
        counts, those that change in one of a few steps."""
        model = self._model().train()
        for parameter in model.parameters():  # a moving average of them begins as they are, and moves once they have
            parameter.mul_(1.5).add_(0.01)
        before = {name: buffer.clone() for name, buffer in buffers(model).items()}
        moved: list[str] = []
        try:
            for _ in range(COUNTED):
                self._run(model, torch.arange(2))
                present = buffers(model)
                moved = [name for name, buffer in present.items() if not torch.equal(buffer, before[name])]
                if all(present[name].is_floating_point() for name in moved):
                    break
        except Exception:  # noqa: BLE001 - it shows in the training
            return []
        return moved

    @torch.no_grad()
    def written_parameters(self) -> list[str]:
        """Return the names of parameters that a step of training writes to before the optimizer does, as
        `Embedding(max_norm=...)` does."""
        model = self._model().train()
        for parameter in model.parameters():
            parameter.mul_(100)  # so that bounds on them act at once
        before = {name: (p._version, p.detach().clone()) for name, p in model.named_parameters()}
        try:
            self._run(model, torch.arange(2))
        except Exception:  # noqa: BLE001 - it shows in the training
            return []
        now = dict(model.named_parameters())
        return [
            name
            for name, (version, values) in before.items()
            if now[name]._version != version or not torch.equal(now[name], values)
        ]

    def takes_sparse_gradients(self) -> bool:
        """Return whether an optimizer of the experiment's own takes nothing but sparse gradients."""
        if not overrides(self._experiment, "optimizer"):
            return False
        try:
            experiment, model = self._fresh()
            own_optimizer = experiment.optimizer(model, Hyperparameters.of(self._hp))  # type: ignore[attr-defined]
        except Exception:  # noqa: BLE001 - it shows in the training
            return False
        each = own_optimizer.values() if isinstance(own_optimizer, Mapping) else [own_optimizer]
        return any(isinstance(optimizer, torch.optim.SparseAdam) for optimizer in each)

    def moving_state(self) -> str | None:
        """Return an attribute, or other state in Python, that a step of training changes; None without any.

        If no attribute changes, the loss decides: of the same samples, after others and as the first ones.
        """
        try:
            with random_state_kept():
                experiment, model = self._fresh()
                some, others, trains = torch.arange(2, 4), torch.arange(2), frozen(model)
                self._training_loss(experiment, model, others)
                before = plain_state(model, experiment)
                after_others = self._training_loss(experiment, model, some)
                path = changed_freezing(trains, model) or changed_attribute(before, plain_state(model, experiment))
                if path is not None or self.moving_buffers():
                    return path
                first = self._training_loss(*self._fresh(), some)
                near = abs(first - after_others) <= (1e-9 if self.exact else 1e-5) * abs(first)
                return None if near else "state that the model or the loss keeps"
        except Exception:  # noqa: BLE001 - it shows in the training, or cannot be copied
            return None

    def _fresh(self) -> tuple[Experiment, nn.Module]:
        """Return copies of the experiment and of a new model, both without earlier calls."""
        experiment = copy.deepcopy(self._experiment)
        model = initial_model(experiment, Hyperparameters.of(self._hp), seed=0)
        return experiment, (model.double() if self.exact else model).train()

    def _model(self) -> nn.Module:
        """Return a copy of the model; where a forward pass has left a tensor with a history in it, as the hooks of
        torch's old norms do, the model as it was made."""
        try:
            return copy.deepcopy(self.model)
        except RuntimeError:
            return self._fresh()[1].eval()

    def _training_loss(self, experiment: Experiment, model: nn.Module, some: torch.Tensor) -> float:
        seed_all(0)
        return Value.of(self._loss(experiment, model, some)).result

    def _loss(self, experiment: Experiment, model: nn.Module, some: torch.Tensor) -> Any:
        """Return the training loss of these samples; without augmentation, unless a step of its own has it."""
        inputs, targets = rows(self._inputs, some), rows(self._targets, some)
        if overrides(experiment, "training_step"):
            with torch.enable_grad():  # which it may use itself
                return summed_loss(experiment, model, inputs, targets, Hyperparameters.of(self._hp))
        return experiment.loss(forward(model, inputs), targets)

    def _run(self, model: nn.Module, some: torch.Tensor) -> Any:
        """Run what changes a model in training before the optimizer does: a forward pass, or a step of its own."""
        if overrides(self._experiment, "training_step"):
            return self._loss(self._experiment, model, some)
        return forward(model, rows(self._inputs, some))

    def augments_together(self) -> bool:
        """Return whether `augment` makes a sample of others of its batch too, as one that mixes samples, or divides by
        the deviation of all; False for a training step of its own."""
        if self._has_own_step or not overrides(self._experiment, "augment"):
            return False
        return depends_on_others(self._augmented, self._count)

    def collates_together(self, splits: Splits) -> bool:
        """Return whether a `collate_fn` makes a sample of others of its batch too, as one that mixes samples, or that
        fills them up while the model's outputs depend on how far."""
        data = training_data(splits, torch.device("cpu"), torch.float64 if self.exact else None, [], threads=1)

        def collated(some: np.ndarray) -> list[np.ndarray]:
            """Return outputs and targets of these samples."""
            inputs, targets = data.train_batch(1, torch.from_numpy(some))
            seed_all(0)
            return _arrays((forward(self.model, inputs), targets))

        return data.made_together and collated_with_others(collated, splits.num_train)

    def _augmented(self, some: np.ndarray) -> list[np.ndarray]:
        """Return these samples as `augment` makes them; state and random numbers begin anew."""
        seed_all(0)
        experiment, hp = copy.deepcopy(self._experiment), Hyperparameters.of(self._hp)
        return _arrays(experiment.augment(rows(self._inputs, torch.from_numpy(some)), hp))

    def _trained(self, some: np.ndarray) -> list[np.ndarray]:
        """Return the model's outputs for these samples in training, without BatchNorm, which is reported separately."""
        model = self._model().train()
        for module in model.modules():
            module.train(module.training and not isinstance(module, _BatchNorm))
        seed_all(0)
        return _arrays(forward(model, rows(self._inputs, torch.from_numpy(some))))

    @property
    def _count(self) -> int:
        """Number of samples that there are."""
        return len(next(iter(tree_leaves(self._targets))))

    def gradient_adds_up(self) -> bool:
        """Return whether the gradient of a few samples follows from those of parts of them, as a training computes
        these; True if that cannot be tested.

        It does not if hooks change it by more than a factor, an embedding divides it by how often a row is used, or the
        model looks at the whole batch while it trains. Of a `Mean`, the parts have the gradient of their numerators,
        and hooks another scale than of the whole.
        """
        chosen = torch.arange(min(MIXED, self._count))
        if not self._with_gradient or len(chosen) < 4:
            return True
        try:
            with random_state_kept():
                verdict = self._adds_up(chosen, training=True)
                if verdict is None:  # random numbers
                    if self._calls_model(chosen) and depends_on_others(self._trained, self._count):
                        return False
                    with contextlib.suppress(Exception), ConstantDraws() as constants:  # not all code takes them
                        verdict = self._adds_up(chosen, training=True, constants=constants)
                if verdict is None:
                    verdict = self._adds_up(chosen, training=False)
                return verdict is not False
        except Exception:  # noqa: BLE001 - it shows in the training
            return True

    def _calls_model(self, chosen: torch.Tensor) -> bool:
        """Return whether a step calls the model itself in training mode, and not its methods or modules alone."""
        experiment, model = copy.deepcopy(self._experiment), self._model().train()
        modes: list[bool] = []
        model.register_forward_pre_hook(lambda module, args: modes.append(module.training))
        self._loss(experiment, model, chosen)
        return any(modes)

    def _adds_up(self, chosen: torch.Tensor, *, training: bool, constants: ConstantDraws | None = None) -> bool | None:
        """Return whether the gradient adds up; None where something in it is drawn by chance, by any generator.

        constants: in place of the numbers that torch draws, if any.
        """
        seed_all(0)
        before = torch.get_rng_state()
        batch_gradient = self._gradient(chosen, training=training)
        drawn = constants.others if constants else not torch.equal(torch.get_rng_state(), before)
        if drawn or numpy_has_drawn(0) or python_has_drawn(0):
            return None
        if not self._near(batch_gradient, self._gradient(chosen, training=training)):
            return None
        cut = [len(chosen) // 4, len(chosen) - len(chosen) // 4]
        return self._near(batch_gradient, self._from_parts(chosen.split(cut), len(chosen), training=training))

    def _from_parts(self, parts: Sequence[torch.Tensor], whole: int, *, training: bool) -> list[torch.Tensor]:
        """Return the gradient of a batch of `whole` samples as a training computes it by parts: see `StepGradient`."""
        above, below, values = [], [], []
        for part in parts:
            loss, model = self._loss_of_copies(part, training=training)
            values.append(Value.of(loss))
            if not isinstance(loss, Mean):
                backward(loss, 1.0 if isinstance(loss, Sum) else len(part) / whole)
                above.append(_taken(model))
                continue
            backward(Sum(loss.total), retain=True)
            above.append(_taken(model))
            if isinstance(loss.weight, torch.Tensor) and loss.weight.requires_grad:
                backward(Sum(loss.weight))
            below.append(_taken(model))
        sums, others = ([sum(each) for each in zip(*some, strict=True)] for some in (above, below))
        if not others:
            return sums
        total, weight = sum(each.total for each in values), sum(each.weight for each in values) or 1.0
        return [(one - total / weight * other) / weight for one, other in zip(sums, others, strict=True)]

    def _near(self, whole: list[torch.Tensor], other: list[Any]) -> bool:
        rounding = self.rounding if self.exact else 10 * self.rounding
        most = rounding * max((float(each.norm()) for each in whole), default=0.0)
        return all(float((one - another).norm()) <= most for one, another in zip(whole, other, strict=True))

    def _gradient(self, chosen: torch.Tensor, *, training: bool) -> list[torch.Tensor]:
        """Return the gradient of these samples' loss."""
        loss, model = self._loss_of_copies(chosen, training=training)
        backward(loss)
        return _taken(model)

    def _loss_of_copies(self, chosen: torch.Tensor, *, training: bool) -> tuple[Any, nn.Module]:
        """Return the loss of these samples, by copies of the experiment and the model, and the copy of the model."""
        experiment, model = copy.deepcopy(self._experiment), self._model()
        if training:
            _train_steadily(model)
        return self._loss(experiment, model, chosen), model


def _arrays(found: Any) -> list[np.ndarray]:
    return [leaf.detach().double().numpy() for leaf in tree_leaves(found)]


def _taken(model: nn.Module) -> list[torch.Tensor]:
    """Return the gradients that a model's parameters have, and drop them; 0 of those without one."""
    gradients = [torch.zeros(()) if p.grad is None else dense(p.grad) for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    return gradients


def _train_steadily(model: nn.Module) -> None:
    """Set training mode, except for layers that draw random numbers then and BatchNorm, which is reported
    separately."""
    model.train()
    for module in model.modules():
        if isinstance(module, _BatchNorm | _DropoutNd):
            module.eval()


def buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return a model's buffers, without the statistics of BatchNorm."""
    norms = {name for name, module in model.named_modules() if isinstance(module, _BatchNorm)}
    return {name: buffer for name, buffer in model.named_buffers() if name.rpartition(".")[0] not in norms}
