"""Evaluate a torch experiment's loss on chosen samples, before it is trained in parts: see `loss_check`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves

from raygpu.config.generators import random_state_kept
from raygpu.experiment import Experiment, Mean, Splits, Sum
from raygpu.search.hyperparameters import Hyperparameters
from raygpu.training.distributed.constant_draws import ConstantDraws
from raygpu.training.distributed.loss_check import Value
from raygpu.training.distributed.sample_dependence import MIXED, collated_with_others, depends_on_others
from raygpu.training.distributed.torch_values import TorchValues, train_steadily
from raygpu.training.own_copy import own_copy
from raygpu.training.torch.data import copied, rows
from raygpu.training.torch.experiment import forward, overrides
from raygpu.training.torch.parameter_traits import changed_freezing, frozen
from raygpu.training.torch.python_state import changed_attribute, plain_state
from raygpu.training.torch.read_data import training_data
from raygpu.training.torch.reduction import backward, dense
from raygpu.training.torch.seeding import numpy_has_drawn, python_has_drawn, seed_all

COUNTED = 8
"""Number of steps that are looked at if a buffer counts them: others may begin to change later."""


class TorchLossEvaluator(TorchValues):
    """Values of a loss, and further effects of a training in parts. See `TorchValues`."""

    gradient_causes = (
        "scale_grad_by_freq, a layer that looks at the whole batch while it trains, or a hook on the gradient, which"
        " gets that of a raygpu.Mean before it is divided"
    )

    @torch.no_grad()
    def least_samples(self) -> int:
        """Return the smallest number of samples on which the model trains: two with BatchNorm, for which one has no
        spread."""
        for count in (1, 2):
            model = self._in_training_mode()
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
        model = self._in_training_mode()
        for parameter in _with_fractions(
            model
        ):  # a moving average of them begins as they are, and moves once they have
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
        model = self._in_training_mode()
        for parameter in _with_fractions(model):
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

    def evaluated_state(self) -> str | None:
        """Return an attribute, or other state in Python, that an evaluation changes and a step of training does not;
        None without any."""
        some, states = torch.arange(min(MIXED, self._count)), []
        try:
            with random_state_kept():
                experiment, model = self._fresh()
                self._training_loss(experiment, model, some)
                for _ in range(2):  # what is made at the first call is there from then on
                    self._evaluate(experiment, model, some)
                    states.append(plain_state(model, experiment))
                model.train()
                self._training_loss(experiment, model, some)
                first, second, trained = *states, plain_state(model, experiment)
        except Exception:  # noqa: BLE001 - it shows in the training, or cannot be copied
            return None
        alike = {path: text for path, text in second.items() if trained.get(path) == text}
        return changed_attribute({path: text for path, text in first.items() if path in alike}, alike)

    @torch.no_grad()
    def _evaluate(self, experiment: Experiment, model: nn.Module, some: torch.Tensor) -> None:
        """Evaluate these samples as between two epochs."""
        seed_all(0)
        model.eval()
        outputs, targets = forward(model, rows(self._inputs, some)), rows(self._targets, some)
        with contextlib.suppress(Exception):  # metrics that need more samples
            experiment.loss(copied(outputs), copied(targets))
            experiment.metrics(outputs, targets)

    def _training_loss(self, experiment: Experiment, model: nn.Module, some: torch.Tensor) -> float:
        seed_all(0)
        return Value.of(self._loss(experiment, model, some)).result

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
        experiment, hp = own_copy(self._experiment), Hyperparameters.of(self._hp)
        return _arrays(experiment.augment(rows(self._inputs, torch.from_numpy(some)), hp))

    def _trained(self, some: np.ndarray) -> list[np.ndarray]:
        """Return the model's outputs for these samples in training, without BatchNorm, which is reported separately."""
        model = self._in_training_mode()
        for module in model.modules():
            if isinstance(module, _BatchNorm):
                module.eval()
        seed_all(0)
        return _arrays(forward(model, rows(self._inputs, torch.from_numpy(some))))

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
        experiment, model = own_copy(self._experiment), self._in_training_mode()
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
        experiment, model = own_copy(self._experiment), self._model()
        if training:
            train_steadily(model)
        return self._loss(experiment, model, chosen), model


def _arrays(found: Any) -> list[np.ndarray]:
    return [leaf.detach().double().numpy() for leaf in tree_leaves(found)]


def _with_fractions(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that are no whole numbers, as those of a quantized layer are."""
    return [each for each in model.parameters() if each.is_floating_point() or each.is_complex()]


def _taken(model: nn.Module) -> list[torch.Tensor]:
    """Return the gradients that a model's parameters have, and drop them; 0 of those without one."""
    gradients = [torch.zeros(()) if p.grad is None else dense(p.grad) for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    return gradients


def buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return a model's buffers, without the statistics of BatchNorm."""
    norms = {name for name, module in model.named_modules() if isinstance(module, _BatchNorm)}
    return {name: buffer for name, buffer in model.named_buffers() if name.rpartition(".")[0] not in norms}
