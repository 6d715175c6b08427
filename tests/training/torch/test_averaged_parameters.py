"""The parameters that have an average: those that are unfrozen later, and those that share memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.torch.parameter_average import UNAVERAGED
from raygpu.training.torch.solo import TorchSolo
from tests.models import few
from tests.torch_device import DEVICE
from tests.training.fused.alike import EXACT, difference
from tests.training.torch.test_parameter_average import EPOCHS, HP, Net, Network, OwnSteps, solo


class Unfreezing(OwnSteps):
    """Its first layer is frozen in the first epoch."""

    steps = 0

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        model = super().model(hp)
        next(model.children()).requires_grad_(False)
        return model

    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> Any:
        self.steps += 1
        if self.steps > 10:
            model.requires_grad_()
        return super().training_step(model, inputs, targets, hp)


def test_a_training_goes_on_with_the_average_of_what_was_unfrozen(tmp_path: Path) -> None:
    whole, first, second = solo(kind=Unfreezing), solo(kind=Unfreezing), solo(kind=Unfreezing)
    wanted = [result.metrics for result in iter(whole.run_epoch, None)]
    for _ in range(3):
        first.run_epoch()
    first.save(tmp_path)
    second.load(tmp_path)
    assert difference(second.state()["model"], first.state()["model"]) == 0
    assert difference(second.state()[UNAVERAGED], first.state()[UNAVERAGED]) == 0
    second.experiment.steps = 10  # type: ignore[attr-defined]
    result = second.run_epoch()
    assert result is not None
    assert result.metrics == pytest.approx(wanted[3], rel=1e-9)
    assert difference(second.state()["model"], whole.state()["model"]) <= EXACT


class UnfreezingInHalf(Unfreezing):
    """Its parameters are bfloat16, and steps too small to move them."""

    steps = 11

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        model = Network()
        model[0].requires_grad_(False)
        return model


def single(kind: type[Net], hp: Mapping[str, Any] = HP) -> TorchSolo:
    """A training in the number types of the model."""
    return TorchSolo(kind(), few(), Trial("t0000", 7, hp), Settings(EPOCHS, 1, "float32", Path()), DEVICE)


def test_a_training_goes_on_with_an_average_that_is_rounded_to_the_value_itself(tmp_path: Path) -> None:
    first, second = (single(UnfreezingInHalf, {**HP, "lr": 1e-9}) for _ in range(2))
    first.run_epoch()
    first.save(tmp_path)
    rounded = {name: value.bfloat16() for name, value in first.state()["model"].items()}
    assert difference(rounded, first.state()[UNAVERAGED]) == 0
    second.load(tmp_path)
    assert second.average is not None
    assert second.average.names == ["0.weight", "0.bias", "2.weight", "2.bias"]


class Twice(nn.Module):
    """A layer whose weight is a second parameter too, in the same memory."""

    def __init__(self, *, trains: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 12), nn.Linear(12, 10)
        self.second = nn.Parameter(self.first.weight.data, requires_grad=trains)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x) + x @ self.second.t()))  # type: ignore[no-any-return]


class TrainedTwice(Net):
    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return Twice(trains=True)


class TrainedOnce(Net):
    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return Twice(trains=False)


@pytest.mark.parametrize("kind", [TrainedTwice, TrainedOnce])
def test_parameters_that_share_memory_keep_their_values_over_evaluations(kind: type[Net], tmp_path: Path) -> None:
    often, once, second = single(kind), single(kind), single(kind)
    once.evaluate = dict  # type: ignore[assignment, method-assign]
    for _ in range(2):
        often.run_epoch()
        once.run_epoch()
    assert difference(often.state()["model"], once.state()["model"]) == 0
    often.save(tmp_path)
    second.load(tmp_path)
    for training in (often, second):
        training.run_epoch()
    for part in ("model", UNAVERAGED):
        assert difference(second.state()[part], often.state()[part]) == 0
