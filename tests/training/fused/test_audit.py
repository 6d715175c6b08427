"""Steps of an array that differ from the trial alone are found while it trains."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from raygpu.training.base import NotAsAlone
from raygpu.training.fused.audit import same_steps
from raygpu.training.fused.model_array import TorchArray
from raygpu.training.fused.tile import Tile
from tests.models import Mlp
from tests.torch_device import DEVICE
from tests.training.fused.alike import (
    members,
    new_array,
    run,
)


def test_a_compiled_step_that_differs_is_found() -> None:
    array = new_array(Mlp(), members({"hidden": 8}, [{"lr": 1e-4}, {"lr": 1e-4}, {"lr": 0.1}]))

    def wrong(parameters: Any, fixed: Any, buffers: Any, optimizer_state: Any, *batch: Any) -> torch.Tensor:
        kept = {name: tensor.clone() for name, tensor in parameters.items()}
        losses = array.program.eager_step(Tile([], [], parameters, fixed, buffers, optimizer_state), *batch)
        for tensor, before in zip(parameters.values(), kept.values(), strict=True):
            tensor[1].copy_(before[1])  # the second member stays where it was
        return losses

    array.program.use(3, array.batch_size, wrong)
    array.compiled_s[3] = 0.0
    with pytest.raises(NotAsAlone, match="the compiled step differs from the eager one"):
        run(array, 1)


class Normed(Mlp):
    """Two BatchNorms, which a huge learning rate makes chaotic and leaves finite."""

    def model(self, hp: Any) -> Any:
        return nn.Sequential(
            nn.Linear(64, 8),
            nn.BatchNorm1d(8),
            nn.ReLU(),
            nn.Linear(8, 8),
            nn.BatchNorm1d(8),
            nn.ReLU(),
            nn.Linear(8, 10),
        )


def test_a_member_whose_steps_are_unstable_sends_no_array_away() -> None:
    array = new_array(Normed(), members({}, [{"lr": 0.05}, {"lr": 500.0, "momentum": 0.9}, {"lr": 0.1}]))
    run(array)
    array.audit("t0001")
    step = array.program.eager_step

    def half(tile: Any, *batch: Any) -> torch.Tensor:
        before = {name: value.clone() for name, value in tile.parameters.items()}
        losses = step(tile, *batch)
        for name, value in tile.parameters.items():
            value.sub_((value - before[name]) / 2)
        return losses

    array.program.eager_step = half  # type: ignore[method-assign]
    with pytest.raises(NotAsAlone, match=r"of t000[02] after epoch"):
        array.audit("t0000")


class Quantized(Normed):
    """A frozen parameter of whole numbers."""

    def model(self, hp: Any) -> Any:
        """Return the model with such a parameter beside its last layer."""
        model = super().model(hp)
        model[6].rounded = nn.Parameter(torch.arange(8, dtype=torch.int8), requires_grad=False)
        return model


def test_a_member_with_a_parameter_of_whole_numbers_is_trained_again_with_rounding_errors() -> None:
    array = new_array(Quantized(), members({}, [{"lr": 0.05}, {"lr": 0.1}]))
    run(array, 1)
    step = array.program.eager_step

    def still(tile: Any, *batch: Any) -> torch.Tensor:
        before = {name: value.clone() for name, value in tile.parameters.items()}
        losses = step(tile, *batch)
        for name, value in tile.parameters.items():
            value.copy_(before[name])
        return losses

    array.program.eager_step = still  # type: ignore[method-assign]
    with pytest.raises(NotAsAlone, match=r"of t000[01] after epoch"):
        array.audit("t0000")


class CountsSteps(nn.Module):
    """A layer whose outputs depend on a count of its steps, which no checkpoint has."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()), persistent=False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.steps += 1
        return values * (1 + 0.01 * self.steps)


class Counting(Mlp):
    """A model whose non-persistent buffer changes with each step."""

    def model(self, hp: Any) -> Any:
        return nn.Sequential(super().model(hp), CountsSteps())


def test_a_buffer_that_is_not_persistent_has_its_value_in_the_training_alone_too() -> None:
    run(new_array(Counting(), members({"hidden": 8}, [{"lr": 0.1}, {"lr": 0.2}])))


class WithMask(Mlp):
    """A buffer that is infinite, as of a mask of attention, and one that changes."""

    def model(self, hp: Any) -> Any:
        model = super().model(hp)
        model.register_buffer("mask", torch.full((2, 2), -math.inf).triu(1))
        model.register_buffer("mean", torch.zeros(3))
        return model


def test_an_infinite_buffer_ends_no_comparison() -> None:
    array = new_array(WithMask(), members({"hidden": 8}, [{"lr": 0.1}, {"lr": 0.2}]))
    run(array, 1)
    [tile] = array.tiles
    assert same_steps(array, tile, array.program.step)

    def drifting(tile: Any, inputs: Any, targets: Any, numbers: Any) -> torch.Tensor:
        losses = array.program.eager_step(tile, inputs, targets, numbers)
        tile.buffers["mean"][1] += 1
        return losses

    assert not same_steps(array, tile, drifting)
    step = array.program.eager_step
    array.program.eager_step = lambda tile, *batch: drifting_after(step(tile, *batch), tile)  # type: ignore[method-assign]
    with pytest.raises(NotAsAlone, match="some steps from there differ"):
        array.audit("t0001")


def drifting_after(losses: torch.Tensor, tile: Any) -> torch.Tensor:
    tile.buffers["mean"] += 1
    return losses


def adam_array() -> TorchArray:
    return new_array(Mlp(), members({"hidden": 8, "optimizer": "adam"}, [{"lr": 0.01}, {"lr": 0.02}, {"lr": 0.03}]))


@pytest.mark.parametrize("part", [0.03, 0.5])
@pytest.mark.parametrize("epochs", [0, 1])
def test_steps_are_compared_before_the_first_epoch_and_later(epochs: int, part: float) -> None:
    """A compiler that updates some parameters too early makes differences of a few per cent."""
    if part < 0.1 and DEVICE.type != "cpu":
        pytest.skip("which is not told from rounding on a GPU")
    array = adam_array()
    run(array, epochs)
    [tile] = array.tiles
    assert same_steps(array, tile, array.program.step)

    def shorter(tile: Any, inputs: Any, targets: Any, numbers: Any) -> torch.Tensor:
        before = {name: value.clone() for name, value in tile.parameters.items()}
        losses = array.program.eager_step(tile, inputs, targets, numbers)
        for name, value in tile.parameters.items():
            value[2].sub_((value[2] - before[name][2]) * part)
        return losses

    assert not same_steps(array, tile, shorter), "one member's step is shorter"


def test_a_member_that_diverged_hides_no_other_and_accuses_none() -> None:
    array = adam_array()
    [tile] = array.tiles
    for value in tile.parameters.values():
        value[0] = math.nan
    assert same_steps(array, tile, array.program.step)

    def still(tile: Any, inputs: Any, targets: Any, numbers: Any) -> torch.Tensor:
        before = {name: value.clone() for name, value in tile.parameters.items()}
        losses = array.program.eager_step(tile, inputs, targets, numbers)
        for name, value in tile.parameters.items():
            value[1].copy_(before[name][1])
        return losses

    assert not same_steps(array, tile, still)
