"""Models in another precision: what an experiment keeps and gives to all of them stays as it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.fused.model_array import TorchArray
from raygpu.training.torch.models import cast_model
from raygpu.training.torch.solo import TorchSolo
from tests.models import Mlp
from tests.torch_device import DEVICE


class Head(nn.Module):
    """A layer that trains over frozen ones, with a factor that is a buffer of its own."""

    def __init__(self, backbone: nn.Module, factor: torch.Tensor) -> None:
        super().__init__()
        self.backbone, self.last = backbone, nn.Linear(8, 10)
        self.register_buffer("factor", factor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.backbone(x).relu()) * self.factor


class Shared(Mlp):
    """Gives a frozen module and a tensor to all models."""

    def __init__(self) -> None:
        self.backbone = nn.Linear(64, 8).requires_grad_(False)
        self.factor = torch.ones(10)

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return Head(self.backbone, self.factor)


def test_what_does_not_train_is_copied() -> None:
    experiment = Shared()
    made = experiment.model({})
    made.again = made.backbone
    model = cast_model(made, torch.float64)
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float64}
    assert model.backbone is model.again
    assert experiment.backbone.weight.dtype == experiment.factor.dtype == torch.float32
    assert torch.equal(model.backbone.weight, experiment.backbone.weight.double())
    assert model(torch.zeros(1, 64, dtype=torch.float64)).dtype == torch.float64


def test_a_model_of_the_same_precision_is_left_alone() -> None:
    experiment = Shared()
    made = experiment.model({})
    assert cast_model(made, torch.float32) is made
    assert made.backbone is experiment.backbone


@pytest.mark.parametrize("dtype", [None, torch.float64], ids=str)
def test_arrays_and_audits_leave_the_experiment_as_it_was(dtype: torch.dtype | None) -> None:
    experiment, settings = Shared(), Settings(2, 1, "float32", Path())
    trials = [Trial(f"t{i:04d}", i, {"lr": 0.1 * (1 + i), "batch_size": 16}) for i in range(3)]
    array = TorchArray(experiment, experiment.data(), trials, settings, device=DEVICE, dtype=dtype)
    array.run_epoch()  # audited
    assert experiment.backbone.weight.dtype == experiment.factor.dtype == torch.float32
    assert TorchSolo(experiment, experiment.data(), trials[0], settings, DEVICE).run_epoch() is not None
