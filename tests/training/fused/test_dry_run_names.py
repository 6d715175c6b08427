"""The hyper-parameters that shape a trial's program."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from raygpu import Splits, TorchExperiment
from raygpu.search.hyperparameters import ALL_NAMES
from raygpu.search.trials import Trial
from raygpu.training.fused.dry_run import READ_BY_RAYGPU, check, names_read
from raygpu.training.fused.groups import TorchGrouper
from tests.models import MODELS, few
from tests.training.fused.refusals import Head, Of, Tempered, ids, trials


class Shapes(TorchExperiment):
    """Reads names in model(), in forward() and in augment()."""

    def data(self) -> Splits:
        return few()

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        class Model(Head):
            def inside(self, x: torch.Tensor) -> torch.Tensor:
                return x * hp.get("slope", 1.0) if "leaky" in hp else x * hp["gain"]

        return Model(hp["features"])

    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        return inputs + hp["noise"] * torch.randn_like(inputs)


def test_names_read_in_model_forward_and_augment() -> None:
    hp = {"features": 8, "gain": 2.0, "noise": 0.1, "lr": 0.1, "momentum": 0.9, "unread": 1}
    found = names_read(Shapes(), Trial("t0000", 0, hp), few())
    assert found == {"features", "gain", "leaky", "noise"} | READ_BY_RAYGPU
    leaky = names_read(Shapes(), Trial("t0000", 0, {**hp, "leaky": True}), few())
    assert leaky == {"features", "leaky", "slope", "noise"} | READ_BY_RAYGPU


def test_names_read_of_models_kept_by_name() -> None:
    for kind, shape in MODELS.values():
        found = names_read(kind(), Trial("t0000", 0, {**shape, "lr": 0.1, "dropout": 0.5}), kind().data())
        assert found == set(shape) | READ_BY_RAYGPU


def test_all_names_of_a_model_that_takes_all() -> None:
    hp = {"features": 8, "lr": 0.1}
    experiment = Of(lambda hp: Head(**{name: value for name, value in hp.items() if name == "features"}))
    assert names_read(experiment, Trial("t0000", 0, hp), few()) == {"features", "lr", ALL_NAMES} | READ_BY_RAYGPU


@pytest.mark.parametrize(
    ("hp", "error"), [({"features": 8, "lr": -1.0}, "lr: read -1.0"), ({"batch_size": 0}, "batch_size: read 0")]
)
def test_bad_numbers_are_raised(hp: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        check(Trial("t0000", 0, hp))


def test_what_the_experiment_raises_is_raised() -> None:
    with pytest.raises(KeyError, match="features"):
        names_read(Shapes(), Trial("t0000", 0, {"lr": 0.1}), few())


def test_names_read_in_evaluation() -> None:
    hp = {"lr": 0.1, "temperature": 2.0}
    assert "temperature" in names_read(Of(Tempered), Trial("t0000", 0, hp), few())


class OfTheBatch(Head):
    """Reads a hyper-parameter in large batches alone."""

    def __init__(self, hp: Mapping[str, Any]) -> None:
        super().__init__()
        self.hp = hp

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.hp["scale"] if len(x) > 8 else x


def test_a_name_that_only_large_batches_read_is_part_of_the_signature() -> None:
    hp = {"lr": 0.1, "scale": 2.0, "batch_size": 16}
    assert "scale" in names_read(Of(OfTheBatch), Trial("t0000", 0, hp), few())
    assert "scale" not in names_read(Of(OfTheBatch), Trial("t0000", 0, {**hp, "batch_size": 8}), few())


class OfForces(Head):
    """Takes a gradient by its inputs while it trains, as a model of energies and forces does."""

    def __init__(self, hp: Mapping[str, Any]) -> None:
        super().__init__()
        self.hp = hp

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return super().forward(x)
        places = x.clone().requires_grad_()
        (forces,) = torch.autograd.grad(super().forward(places).square().sum(), places, create_graph=True)
        return super().forward(x) + self.hp["weight"] * forces.square().sum()


def test_a_model_that_takes_gradients_in_training_shows_its_names() -> None:
    assert "weight" in names_read(Of(OfForces), Trial("t0000", 0, {"lr": 0.1, "weight": 2.0}), few())


def test_which_names_there_are_is_part_of_the_signature() -> None:
    def model(hp: Mapping[str, Any]) -> nn.Module:
        depth = sum(name.startswith("layer") for name in hp)
        return nn.Sequential(*[nn.Linear(64, 64) for _ in range(depth)], nn.Linear(64, 10))

    experiment = Of(model)
    own = [{"lr": 0.1}, {"lr": 0.2}, {"lr": 0.1, "layer1": 1}, {"lr": 0.3, "layer1": 2}]
    groups = TorchGrouper(experiment, few()).groups(trials(own=own))
    assert ids(groups) == [["t0000", "t0001"], ["t0002", "t0003"]]
    assert [group.reason for group in groups] == [None, None]


def test_relative_paths_start_where_the_experiment_lies(tmp_path: Path) -> None:
    torch.save(torch.ones(10, 64), tmp_path / "start.pt")

    def model(hp: Mapping[str, Any]) -> nn.Module:
        layer = nn.Linear(64, 10)
        layer.weight.data = torch.load("start.pt")
        return layer

    assert [group.reason for group in TorchGrouper(Of(model), few(), folder=tmp_path).groups(trials())] == [None]
