"""Lines of a first step on what gets a gradient and no optimizer changes, or is trained in another mode."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss

from raygpu.training.torch.first_step import first_result
from tests.training.torch.test_first_step import Squeezed


class OwnParameter(Squeezed):
    """Weighs its loss by a number that is to be learned."""

    def __init__(self) -> None:
        self.weight = nn.Parameter(torch.zeros(()))

    def loss(self, outputs: Any, targets: Any) -> Any:
        return super().loss(outputs, targets) * self.weight.exp()


class OwnModule(Squeezed):
    """Compares what another network says of outputs and targets."""

    def __init__(self) -> None:
        self.features = nn.Linear(1, 3)

    def loss(self, outputs: Any, targets: Any) -> Any:
        return mse_loss(self.features(outputs), self.features(targets.reshape(-1, 1)))


class Listed(OwnModule):
    """Keeps its network in a list."""

    def __init__(self) -> None:
        self.features = [nn.Linear(1, 3)]  # type: ignore[assignment]

    def loss(self, outputs: Any, targets: Any) -> Any:
        [features] = self.features  # type: ignore[misc]
        return mse_loss(features(outputs), features(targets.reshape(-1, 1)))  # type: ignore[has-type]


class Taught(Squeezed):
    """Learns from a part of the model that is in evaluation mode."""

    def __init__(self, *, frozen: bool, learns: bool = False) -> None:
        self.frozen, self.learns = frozen, learns

    def model(self, hp: Any) -> nn.Module:
        model = super().model(hp)
        model.teacher = nn.Sequential(nn.Linear(4, 1), nn.Dropout()).eval().requires_grad_(not self.frozen)
        return model

    def training_step(self, model: Any, inputs: Any, targets: Any, hp: Any) -> Any:
        with torch.set_grad_enabled(self.learns):
            wanted = model.teacher(inputs)
        return mse_loss(model(inputs).reshape(-1, 1), wanted)


def test_a_part_in_evaluation_mode_that_nothing_trains_is_told() -> None:
    [line] = first_result(Taught(frozen=False), Taught(frozen=False).data(), {})[2]
    assert line.startswith("teacher of the model is in evaluation mode and gets no gradient")
    for quiet in (Taught(frozen=True), Taught(frozen=False, learns=True)):
        assert first_result(quiet, quiet.data(), {})[2] == []


CENTER = nn.Sequential(nn.Linear(1, 3))
SCALES = {"one": nn.Parameter(torch.ones(()))}


class OfGlobal(Squeezed):
    """Its training step has a loss with parameters in a variable of the module."""

    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Any) -> Any:
        return compared(model(inputs), targets.reshape(-1, 1))


class OfGlobalParameter(Squeezed):
    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Any) -> Any:
        return mse_loss(model(inputs) * SCALES["one"], targets.reshape(-1, 1))


def compared(outputs: Any, targets: Any) -> Any:
    return mse_loss(CENTER(outputs), targets.expand(-1, 3))


def test_what_is_trained_in_a_variable_of_the_module_is_told() -> None:
    [line] = first_result(OfGlobal(), OfGlobal().data(), {})[2]
    assert line.startswith("the global CENTER.0.weight gets a gradient and is no part of the model")
    [line] = first_result(OfGlobalParameter(), OfGlobalParameter().data(), {})[2]
    assert line.startswith("the global SCALES['one'] gets a gradient and is no part of the model")


def test_what_is_trained_outside_the_model_is_told() -> None:
    [line] = first_result(OwnParameter(), OwnParameter().data(), {})[2]
    assert line.startswith("self.weight gets a gradient and is no part of the model, so that no optimizer changes it")
    frozen = OwnParameter()
    frozen.weight.requires_grad = False
    assert first_result(frozen, frozen.data(), {})[2] == []
    [line] = first_result(Listed(), Listed().data(), {})[2]
    assert line.startswith("self.features gets a gradient")
    [line] = first_result(OwnModule(), OwnModule().data(), {})[2]
    assert line.startswith("self.features gets a gradient and is no part of the model, so that no optimizer changes it")
    frozen_module = OwnModule()
    frozen_module.features.requires_grad_(False)
    assert first_result(frozen_module, frozen_module.data(), {})[2] == []
