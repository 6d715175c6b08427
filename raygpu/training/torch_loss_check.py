"""A torch experiment, looked at before it is trained by several devices or in parts: see `loss_check`."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves, tree_map

from raygpu.experiment import Arrays, Experiment, Hyperparameters
from raygpu.training.loss_check import Value
from raygpu.training.torch_data import Tensors, cast, rows, tensors
from raygpu.training.torch_solo import EVALUATION_BATCH, forward, initial_model


class TorchLook:
    """An untrained model on the CPU, in float64 where its code takes that.

    A loss is looked at as a training sees it, with gradients under way, unless it needs more than outputs then.
    with_metrics: whether metrics are looked at too.
    """

    batch = EVALUATION_BATCH
    """Samples of a batch of an evaluation."""

    def __init__(
        self, experiment: Experiment, hp: Mapping[str, Any], inputs: Arrays, targets: Arrays, *, with_metrics: bool
    ) -> None:
        self._experiment, self._with_metrics = experiment, with_metrics
        self._hp, self._arrays = hp, (inputs, targets)
        self.exact = self._with_gradient = False
        self._held: tuple[Any, Tensors, Any] | None = None
        with_gradient = (False,) if with_metrics else (True, False)
        if not any(self._works(dtype, each) for dtype in (torch.float64, None) for each in with_gradient):
            self._prepare(None)  # what its code raises shows when it is looked at

    def _works(self, dtype: torch.dtype | None, with_gradient: bool) -> bool:
        """Whether its code takes numbers of this type: by default its own."""
        self.exact, self._with_gradient = dtype is not None, with_gradient
        try:
            self._prepare(dtype)
            self.values(np.arange(2))
        except Exception:  # noqa: BLE001 - code that names float32, or reads what only a training leaves
            return False
        return True

    def _prepare(self, dtype: torch.dtype | None) -> None:
        model = initial_model(self._experiment, Hyperparameters.of(self._hp), seed=0)
        self.model: nn.Module = (model if dtype is None else model.double()).eval()
        self._inputs, self._targets = (cast(tensors(part), dtype) for part in self._arrays)

    def values(self, chosen: np.ndarray) -> dict[str, Value]:
        with torch.set_grad_enabled(self._with_gradient):
            outputs = forward(self.model, rows(self._inputs, torch.from_numpy(chosen)))
            return self._values(self._experiment, outputs, rows(self._targets, torch.from_numpy(chosen)))

    def _values(self, experiment: Any, outputs: Any, targets: Tensors) -> dict[str, Value]:
        found = {"loss": experiment.loss(outputs, targets)}
        if self._with_metrics:
            found |= experiment.metrics(outputs, targets)
        return {name: Value.of(value) for name, value in found.items()}

    @torch.no_grad()
    def hold(self, chosen: np.ndarray) -> None:
        outputs = forward(self.model, rows(self._inputs, torch.from_numpy(chosen)))
        leaves = tree_leaves(outputs)
        if not all(isinstance(leaf, torch.Tensor) and leaf.shape[:1] == (len(chosen),) for leaf in leaves):
            raise ValueError("outputs that are not one for each sample")
        if self._with_gradient:
            outputs = tree_map(lambda leaf: leaf.requires_grad_(leaf.is_floating_point()), outputs)
        self._held = outputs, rows(self._targets, torch.from_numpy(chosen)), copy.deepcopy(self._experiment)

    def held(self, places: slice, seed: int = 0) -> dict[str, Value]:
        assert self._held is not None
        outputs, targets, experiment = self._held
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        with torch.set_grad_enabled(self._with_gradient):
            part = tree_map(lambda leaf: leaf[places].clone(), outputs)
            return self._values(copy.deepcopy(experiment), part, rows(targets, places))

    @torch.no_grad()
    def least_samples(self) -> int:
        """Samples that the model has to have at once to be trained: two with BatchNorm, for which one has no spread."""
        for count in (1, 2):
            model = copy.deepcopy(self.model).train()
            some = torch.arange(count)
            try:
                outputs = forward(model, rows(self._inputs, some))
                loss = self._experiment.loss(outputs, rows(self._targets, some))
            except Exception:  # noqa: BLE001 - what one sample is too few for
                continue
            finite = all(bool(leaf.isfinite().all()) for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor))
            if finite and loss is not None:
                return count
        return 1

    @torch.no_grad()
    def moving_buffers(self) -> list[str]:
        """The names of buffers that a forward pass in training changes, those of BatchNorm apart."""
        model = copy.deepcopy(self.model).train()
        own = buffers(model)
        before = {name: buffer.clone() for name, buffer in own.items()}
        try:
            forward(model, rows(self._inputs, torch.arange(2)))
        except Exception:  # noqa: BLE001 - it shows in the training
            return []
        return [name for name, buffer in own.items() if not torch.equal(buffer, before[name])]


def buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """A model's buffers, but for the statistics of BatchNorm."""
    norms = {name for name, module in model.named_modules() if isinstance(module, _BatchNorm)}
    return {name: buffer for name, buffer in model.named_buffers() if name.rpartition(".")[0] not in norms}
