"""Units of a torch model: the pieces between which it can be cut into stages, and their costs on one device.

units = costs(model, inputs, num_buffers=2)      # in the order of execution, on the model's device
stages = balanced(found, stages=3)               # the names with which stages 1 and 2 begin
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from raygpu.errors import BadInput
from raygpu.experiment import Experiment, Splits, take
from raygpu.planning.pipelines import Unit
from raygpu.search.hyperparameters import Hyperparameters
from raygpu.search.trials import Trial
from raygpu.training.hyperparameters import OptimizerSettings
from raygpu.training.memory_usage import GIB
from raygpu.training.torch.data import Tensors, copied, moved, rows, tensors
from raygpu.training.torch.experiment import forward
from raygpu.training.torch.models import default_device, initial_model
from raygpu.training.torch.module_calls import around_calls


@dataclass(slots=True)
class _Place:
    """A unit: the submodules that begin there, one inside the other."""

    names: list[str]
    seconds: list[float] = field(default_factory=list)
    """Seconds of each pass."""
    parameter_bytes: int = 0
    saved: dict[int, int] = field(default_factory=dict)
    """Bytes of each memory block that autograd saves."""


def costs(model: nn.Module, inputs: Tensors, *, num_buffers: int = 0, repeats: int = 3) -> list[Unit]:
    """Measure each unit of a model on its device, in the order of execution: a submodule with which a stage can begin,
    since it is called once.

    Of several that begin together, one inside the other, the outermost is the unit. The first one begins with the
    model: no stage but stage 0 can begin with it. inputs: a few samples, on the model's device. num_buffers: of the
    optimizer, for each parameter. repeats: measured passes, after one that warms up. The gradients are dropped, and
    buffers such as those of BatchNorm change.
    """
    places = _places(model, inputs)
    pass_ = _Pass(model, places, next(iter(tree_leaves(inputs))).device)
    for _ in range(1 + repeats):
        pass_.run(inputs)
    parameter_blocks = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    return [
        Unit(
            place.names[0],
            median(place.seconds[1:]),  # of passes, as other work on the machine may hold up one of them
            (
                place.parameter_bytes * (2 + num_buffers)
                + sum(size for block, size in place.saved.items() if block not in parameter_blocks)
            )
            / GIB,
        )
        for place in places
    ]


def _places(model: nn.Module, inputs: Tensors) -> list[_Place]:
    """Call the model once; return its units in the order of execution."""
    called: list[str] = []
    with torch.no_grad(), around_calls(model, lambda name, *_: called.append(name), lambda *_: None):
        forward(model, copied(inputs))
    places: list[_Place] = []
    last = ""
    for name in called:
        if called.count(name) > 1:
            last = ""  # what begins inside is no part of the unit before
            continue
        if last and name.startswith(f"{last}."):
            places[-1].names.append(name)
        else:
            places.append(_Place([name]))
        last = name
    if not places:
        raise BadInput("stages: the model calls none of its submodules once; a pipeline is cut where one begins")
    return places


class _Pass:
    """A forward and backward pass, whose time and memory go to the unit that began last."""

    def __init__(self, model: nn.Module, places: list[_Place], device: torch.device) -> None:
        self._model, self._places, self._device = model, places, device
        self._begins = {name: number for number, place in enumerate(places) for name in place.names}
        self._now = 0
        self._since = 0.0

    def run(self, inputs: Tensors) -> None:
        """Run one pass, and add its times to those of each unit."""
        for place in self._places:
            place.seconds.append(0.0)
            place.parameter_bytes = 0
            place.saved.clear()
        try:
            with around_calls(self._model, self._before, self._after, with_model=True):
                self._now, self._since = 0, time.perf_counter()
                with torch.autograd.graph.saved_tensors_hooks(self._save, lambda tensor: tensor):
                    outputs = forward(self._model, copied(inputs))
                    total = sum(value.sum() for value in tree_leaves(outputs) if _has_gradient(value))
                if not isinstance(total, torch.Tensor):
                    raise BadInput("stages: the model's output has no gradient, so its units cannot be measured")
                total.backward()
                self._begin(0)
        finally:
            self._model.zero_grad(set_to_none=True)

    def _begin(self, place: int) -> None:
        """Give the time so far to the unit that began last, and begin another one."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        self._places[self._now].seconds[-1] += now - self._since
        self._now, self._since = place, now

    def _before(self, name: str, module: nn.Module, _: Any) -> None:
        place = self._begins.get(name)
        if place is not None and self._places[place].names[0] == name:
            self._begin(place)
        parameters = [parameter for parameter in module.parameters(recurse=False) if parameter.requires_grad]
        self._places[self._now].parameter_bytes += sum(parameter.nbytes for parameter in parameters)

    def _after(self, name: str, module: nn.Module, arguments: Any, outputs: Any) -> None:
        """Begin the unit again where the backward pass reaches the output of its innermost submodule."""
        place = self._begins.get(name)
        if place is None or self._places[place].names[-1] != name:
            return
        for value in tree_leaves(outputs):
            if _has_gradient(value) and value.grad_fn is not None:
                value.grad_fn.register_prehook(lambda *_: self._begin(place))

    def _save(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_sparse:
            storage = tensor.untyped_storage()
            self._places[self._now].saved[storage.data_ptr()] = storage.nbytes()
        return tensor


def _has_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def measured_units(experiment: Experiment, splits: Splits, trial: Trial) -> list[Unit]:
    """Measure the units of a trial's model with one batch, on the default device or, if that does not hold it, on the
    CPU."""
    hp = Hyperparameters(trial.hyperparameters)
    settings = OptimizerSettings.of(hp)
    batch = rows(tensors(take(splits.train_inputs, slice(0, settings.batch_size))), slice(None))
    for device in dict.fromkeys([default_device(), torch.device("cpu")]):
        try:
            model = initial_model(experiment, hp, trial.seed).to(device)
            return costs(model, moved(batch, device), num_buffers=settings.num_buffers)
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
    raise MemoryError("neither the GPU nor the host holds the model")
