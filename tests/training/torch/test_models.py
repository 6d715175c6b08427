"""Models in another precision: what an experiment keeps and gives to all of them stays as it is."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from raygpu.errors import BadInput
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.fused.model_array import TorchArray
from raygpu.training.torch.models import (
    CHECKPOINT,
    _sum_of_bits,
    cast_model,
    initial_model,
    load_checkpoint,
    trained_model,
)
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


BACKBONE = nn.Linear(64, 8)


class Global(Mlp):
    """Gives a global variable to all models, frozen or not."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(BACKBONE.requires_grad_(hp["trains"]), nn.Linear(8, 10))


@pytest.fixture
def backbone(monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    made = nn.Linear(64, 8)
    monkeypatch.setattr(sys.modules[__name__], "BACKBONE", made)
    return made


def test_parameters_that_are_given_again_are_refused_once_they_have_changed(backbone: nn.Module) -> None:
    for _ in range(2):
        assert initial_model(Global(), {"trains": False}, 0)[0] is backbone
    backbone.load_state_dict({name: value.clone() for name, value in backbone.state_dict().items()})
    assert initial_model(Global(), {"trains": False}, 0)[0] is backbone
    with torch.no_grad():
        backbone.weight[1, 1] += 1e-6
    with pytest.raises(ValueError, match=r"returned the parameter 0\.weight again.* and has changed: make new ones"):
        initial_model(Global(), {"trains": False}, 0)


def test_parameters_that_are_given_to_two_trainings_are_refused(backbone: nn.Module) -> None:
    initial_model(Global(), {"trains": False}, 0)
    with pytest.raises(ValueError, match=r"returned the parameter 0\.weight again, which an earlier model has: make"):
        initial_model(Global(), {"trains": True}, 0)


def test_a_frozen_trial_after_one_that_has_trained_a_global_variable_is_refused(backbone: nn.Module) -> None:
    settings = Settings(1, 1, "float32", Path())
    trials = [Trial("t0000", 0, {"lr": 0.1, "batch_size": 16, "trains": trains}) for trains in (True, False)]
    TorchSolo(Global(), Mlp().data(), trials[0], settings, DEVICE).run_epoch()
    with pytest.raises(ValueError, match="which an earlier model has and has changed"):
        TorchSolo(Global(), Mlp().data(), trials[1], settings, DEVICE)


def test_a_trial_after_one_that_has_changed_the_statistics_of_a_global_variable_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    norm = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8)).requires_grad_(False)
    monkeypatch.setattr(sys.modules[__name__], "BACKBONE", norm)
    trial, hp = Trial("t0000", 0, {"lr": 0.1, "batch_size": 16, "trains": False}), {"trains": False}
    assert initial_model(Global(), hp, 0)[0] is initial_model(Global(), hp, 0)[0]
    TorchSolo(Global(), Mlp().data(), trial, Settings(1, 1, "float32", Path()), DEVICE).run_epoch()
    with pytest.raises(ValueError, match=r"returned the buffer 0\.1\.\w+ again, which an earlier model has and has ch"):
        initial_model(Global(), hp, 0)


@pytest.mark.parametrize(
    "tensor",
    [torch.zeros(()), torch.zeros(3, 5)[:, 1:].t(), torch.zeros(3, dtype=torch.complex64), torch.zeros(5).bfloat16()],
    ids=lambda tensor: f"{tensor.dtype} {list(tensor.shape)}",
)
def test_a_change_of_any_number_shows_in_the_sum_of_bits(tensor: torch.Tensor) -> None:
    before = _sum_of_bits(tensor)
    tensor[(-1,) * tensor.ndim] += 1e-6
    assert _sum_of_bits(tensor) != before


def test_a_parameter_without_memory_has_no_bits() -> None:
    assert _sum_of_bits(nn.LazyLinear(3).weight) == _sum_of_bits(torch.zeros(3, device="meta")) == 0


def test_loaded_models_are_apart_from_each_other_and_from_the_experiment(tmp_path: Path) -> None:
    class Held(Mlp):
        def __init__(self) -> None:
            self.backbone = nn.Linear(64, 8)

        def model(self, hp: Mapping[str, Any]) -> nn.Module:
            return nn.Sequential(self.backbone, nn.Linear(8, 10))

    experiment, trial = Held(), Trial("t0000", 0, {"lr": 0.1, "batch_size": 16})
    before = experiment.backbone.weight.detach().clone()
    weights = []
    for number in range(2):
        model = Held().model({})
        weights.append(model[0].weight)
        (tmp_path / str(number)).mkdir()
        torch.save({"model": model.state_dict()}, tmp_path / str(number) / CHECKPOINT)
    loaded = [trained_model(experiment, trial, tmp_path / str(number)) for number in range(2)]
    assert all(torch.equal(model[0].weight, weight) for model, weight in zip(loaded, weights, strict=True))
    assert torch.equal(experiment.backbone.weight, before)


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    """Of which torch reads another number without a word."""
    path = tmp_path / CHECKPOINT
    state = {"model": {"weight": torch.arange(100.0), "bias": torch.empty(0)}, "epoch": 3}
    torch.save(state, path)
    whole = path.read_bytes()
    assert load_checkpoint(tmp_path)["epoch"] == 3
    turned = bytearray(whole)
    turned[whole.index(np.arange(100, dtype=np.float32).tobytes()) + 30] ^= 0x40
    for content, fault in (
        (bytes(turned), r"is damaged \(.*data/0"),
        (whole[: len(whole) // 2], "is damaged"),
        (b"", "is damaged"),
    ):
        path.write_bytes(content)
        with pytest.raises(BadInput, match=f"checkpoint.pt: {fault}"):
            load_checkpoint(tmp_path)
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(state, path)
    finally:
        torch.serialization.set_crc32_options(True)
    assert load_checkpoint(tmp_path)["epoch"] == 3, "it has no checksums"
